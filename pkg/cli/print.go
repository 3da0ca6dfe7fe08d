package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// plain writes text with control characters made visible. Names come from runtimes and pods, and a
// terminal would interpret escape sequences in them.
type plain struct{ io.Writer }

func (p plain) Write(b []byte) (int, error) {
	var out strings.Builder
	for _, r := range string(b) {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := io.WriteString(p.Writer, out.String()); err != nil {
		return 0, err
	}
	return len(b), nil
}

// printRows prints rows as JSON, or as a table with the given heads, which are separated by spaces.
// cells returns the cells of a row; one that is "" is not known, which a table shows as "-".
func printRows[T any](a *app, rows []T, heads string, cells func(T) []string) error {
	if a.output == "json" {
		return a.printJSON(rows)
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(heads, " ", "\t"))
	for _, r := range rows {
		words := cells(r)
		for i, word := range words {
			words[i] = cmp.Or(word, "-")
		}
		fmt.Fprintln(w, strings.Join(words, "\t"))
	}
	return w.Flush()
}

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.Stdout)
	e.SetEscapeHTML(false) // output may have shell commands with &&
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// say prints a line on standard error, with the name by which the program was called.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.Stderr, a.program+": "+format+"\n", args...)
}

// qualified returns a name with its namespace, "" if there is no name.
func qualified(namespace, name string) string {
	if name == "" {
		return ""
	}
	return namespace + "/" + name
}

// stamp returns a time as JSON has it, nil for none.
func stamp(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := t.UTC().Format(time.RFC3339)
	return &s
}

// text returns the string that a pointer leads to, "" if it is nil.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// addressText returns an address as text, "" if there is none.
func addressText(a netip.Addr) string {
	text, _ := a.MarshalText() // without an error for each address
	return string(text)
}

// short truncates a container ID to 13 characters, the length that crictl prints.
func short(id string) string { return id[:min(len(id), 13)] }

// row is the JSON form of a lease. Its fields are a stable interface.
type row struct {
	Network    string  `json:"network"`
	Address    string  `json:"address"`
	Namespace  string  `json:"namespace"`
	Pod        string  `json:"pod"`
	UID        string  `json:"uid"`
	Interface  string  `json:"interface"`
	Container  string  `json:"container"`
	Netns      string  `json:"netns"`
	MAC        string  `json:"mac"`
	State      string  `json:"state"`
	Firm       bool    `json:"firm"`
	Window     string  `json:"window"`
	BoundAt    *string `json:"boundAt"`
	ReleasedAt *string `json:"releasedAt"`
	Until      *string `json:"until"`
	ID         string  `json:"id"`

	Reservation string `json:"reservation"`
}

func rowOf(l lease.Lease, now lease.Instant) row {
	r := row{
		Network: l.Pool.Network, Address: addressText(l.Address), Namespace: l.Namespace, Pod: l.Name, UID: l.UID,
		Interface: l.Holder.IfName, Container: l.Holder.ContainerID, Netns: l.Holder.Netns.Path, MAC: l.MAC,
		State: l.State.String(), Firm: l.Firm, ID: l.ID, BoundAt: stamp(l.BoundAt.Wall),
		ReleasedAt: stamp(l.ReleasedAt.Wall), Reservation: l.Reservation,
	}
	if l.Window > 0 {
		r.Window = l.Window.String()
	}
	if l.State == lease.Held {
		until := l.Until(now)
		if r.Until = stamp(until); until.IsZero() {
			forever := lease.Forever.String()
			r.Until = &forever
		}
	}
	return r
}

func (r row) pod() string { return qualified(r.Namespace, r.Pod) }

// state returns the state of a lease for a table. It distinguishes soft holds from firm holds.
func (r row) state() string {
	if r.State == lease.Held.String() && !r.Firm {
		return "Held (cool-down)"
	}
	return r.State
}
