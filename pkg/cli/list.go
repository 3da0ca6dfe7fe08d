package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) list() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "list",
		Short: "List the addresses that are in use or held",
		Long: `List the leases of this node. An address is Bound to a container, or Held for a pod
that is away. "Held (cool-down)" is a short hold of a pod without retention. The
column FOR has reservation names, if a lease has one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			leases, err := a.leases(cmd.Context(), func(l lease.Lease) bool { return all || !l.Lapsed(a.Clock()) })
			if err != nil {
				return err
			}
			return a.print(leases)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "include expired holds")
	return c
}

// leases returns the leases that match the filters and for which keep reports true.
func (a *app) leases(ctx context.Context, keep func(lease.Lease) bool) ([]lease.Lease, error) {
	var out []lease.Lease
	err := a.view(ctx, func(tx *store.Tx) error {
		out = nil
		tx.All(func(l lease.Lease, err error) bool {
			if err != nil {
				fmt.Fprintf(a.Stderr, "leasectl: %v\n", err)
			} else if a.selected(l) && keep(l) {
				out = append(out, l)
			}
			return true
		})
		return nil
	})
	return out, err
}

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
		Network: l.Pool.Network, Address: l.Address.String(), Namespace: l.Namespace, Pod: l.Name, UID: l.UID,
		Interface: l.Holder.IfName, Container: l.Holder.ContainerID, Netns: l.Holder.Netns.Path, MAC: l.MAC,
		State: l.State.String(), Firm: l.Firm, ID: l.ID,
		BoundAt: stamp(l.BoundAt.Wall), ReleasedAt: stamp(l.ReleasedAt.Wall), Reservation: l.Reservation,
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

func stamp(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := t.UTC().Format(time.RFC3339)
	return &s
}

func (a *app) print(leases []lease.Lease) error {
	now := a.Clock()
	rows := make([]row, len(leases))
	for i, l := range leases {
		rows[i] = rowOf(l, now)
	}
	if a.output == "json" {
		return printJSON(a.Stdout, rows)
	}
	return table(a.Stdout, func(w io.Writer) {
		head := "NETWORK\tADDRESS\tPOD\tINTERFACE\tSTATE\tUNTIL\tCONTAINER"
		named := slices.ContainsFunc(rows, func(r row) bool { return r.Reservation != "" })
		if named {
			head += "\tFOR"
		}
		if a.output == "wide" {
			head += "\tWINDOW\tUID\tNETNS\tID"
		}
		fmt.Fprintln(w, head)
		for _, r := range rows {
			fmt.Fprint(w, strings.Join([]string{r.Network, r.Address, podText(r), r.Interface, stateText(r),
				or(r.Until), short(r.Container)}, "\t"))
			if named {
				fmt.Fprint(w, "\t"+dash(r.Reservation))
			}
			if a.output == "wide" {
				fmt.Fprint(w, "\t"+strings.Join([]string{dash(r.Window), dash(r.UID), dash(r.Netns), r.ID}, "\t"))
			}
			fmt.Fprintln(w)
		}
	})
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // output may have shell commands with &&
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func table(out io.Writer, fill func(io.Writer)) error {
	w := tabwriter.NewWriter(out, 0, 4, 3, ' ', 0)
	fill(w)
	return w.Flush()
}

func podText(r row) string {
	if r.Pod == "" {
		return "-"
	}
	return r.Namespace + "/" + r.Pod
}

// stateText returns the state of a lease for a table. It distinguishes soft holds from firm holds.
func stateText(r row) string {
	if r.State == lease.Held.String() && !r.Firm {
		return "Held (cool-down)"
	}
	return r.State
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func or(s *string) string {
	if s == nil {
		return "-"
	}
	return *s
}

// short truncates a container ID to 13 characters, the length that crictl prints.
func short(id string) string {
	if len(id) > 13 {
		return id[:13]
	}
	return dash(id)
}
