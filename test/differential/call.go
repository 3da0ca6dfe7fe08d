// Package differential gives the same calls to leasehold's plugin and to upstream's host-local,
// both as programs, and compares what they print and whether they succeed. What may differ is in
// the table Differences, from which docs/reference.md has it.
package differential

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
)

// Call is one call of a plugin.
type Call struct {
	// CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_ARGS; "" for no variable.
	Verb, ID, Netns, IfName, Args string
	Override                      string // CNI_NETNS_OVERRIDE
	NoPath                        bool   // there is no CNI_PATH
	Stdin                         string
	// Prev is the number of the earlier call whose result is put into Stdin as prevResult; 0 for
	// none.
	Prev int
}

func (c Call) environ() (env []string) {
	for _, v := range [][2]string{{"CNI_COMMAND", c.Verb}, {"CNI_CONTAINERID", c.ID}, {"CNI_NETNS", c.Netns},
		{"CNI_IFNAME", c.IfName}, {"CNI_ARGS", c.Args}, {"CNI_NETNS_OVERRIDE", c.Override}} {
		if v[1] != "" {
			env = append(env, v[0]+"="+v[1])
		}
	}
	if !c.NoPath {
		env = append(env, "CNI_PATH=/nowhere")
	}
	return env
}

// String returns the call as a command for a shell.
func (c Call) String() string {
	var words []string
	for _, v := range c.environ() {
		name, value, _ := strings.Cut(v, "=")
		words = append(words, name+"="+quote(value))
	}
	stdin := c.Stdin
	if c.Prev > 0 {
		stdin = c.withPrev(fmt.Sprintf(`<result of call %d>`, c.Prev))
	}
	return strings.Join(words, " ") + " <<<" + quote(stdin)
}

func quote(s string) string {
	if len(s) > 1000 {
		s = fmt.Sprintf("%s...(%d bytes)", s[:200], len(s))
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// withPrev returns Stdin with a prevResult. It returns Stdin if it is not an object.
func (c Call) withPrev(result string) string {
	if rest, ok := strings.CutPrefix(c.Stdin, "{"); ok && result != "" {
		return `{"prevResult":` + result + "," + rest
	}
	return c.Stdin
}

// Reply is how a program answers a call.
type Reply struct {
	Exit           int
	Stdout, Stderr string
}

func (r Reply) ok() bool { return r.Exit == 0 }

// documents returns the JSON documents that were printed.
func (r Reply) documents() (out []any, err error) {
	for d := json.NewDecoder(strings.NewReader(r.Stdout)); ; {
		var one any
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return out, err
		}
		out = append(out, one)
	}
}

// failure returns the code and the message of the CNI error that was printed.
func (r Reply) failure() (code int, msg string) {
	var e struct {
		Code int
		Msg  string
	}
	_ = json.Unmarshal([]byte(r.Stdout), &e)
	return e.Code, e.Msg
}

// Exchange is a call with both replies.
type Exchange struct {
	Call
	HostLocal, Leasehold Reply
}

// difference returns what differs, "" if nothing does. That both fail is no difference, whatever
// the errors say.
func (e Exchange) difference() string {
	hl, lh := e.HostLocal, e.Leasehold
	theirs, errTheirs := hl.documents()
	ours, errOurs := lh.documents()
	switch {
	case hl.ok() && !lh.ok():
		return "leasehold fails"
	case !hl.ok() && lh.ok():
		return "host-local fails"
	case !hl.ok() && len(theirs) > 1:
		return "host-local prints a result and an error"
	case hl.ok() && (errTheirs == nil) != (errOurs == nil):
		return "one prints JSON"
	case hl.ok():
		if diff := cmp.Diff(theirs, ours); diff != "" {
			return "the results differ: -host-local +leasehold\n" + diff
		}
	}
	return ""
}

// wrong returns what must not be in leasehold's reply, whatever host-local's is. past are the
// exchanges before it.
func (e Exchange) wrong(past []Exchange) string {
	lh := e.Leasehold
	isOfOther := func(p Exchange) bool {
		return p.attachment() != e.attachment() && p.network() == e.network() && !e.replaces(p) &&
			intersect(addresses(lh), held(past, p))
	}
	documents, err := lh.documents()
	code, msg := lh.failure()
	switch {
	case strings.Contains(lh.Stderr, "panic") || strings.Contains(lh.Stderr, "goroutine "):
		return "leasehold panicked"
	case err != nil || len(documents) > 1:
		return "leasehold printed more than one JSON document"
	case !lh.ok() && (code == 0 || code == 3 || code == 999 || msg == ""):
		return "leasehold printed no error, or one with a code that runtimes misunderstand"
	case e.Verb == "DEL" && (strings.Contains(msg, "not found") || strings.Contains(msg, "no such file")):
		return "containerd takes this error of a DEL for success"
	case e.Verb == "ADD" && lh.ok() && e.namesNoPod() && strings.Count(lh.Stderr, "no address is kept for") != 1:
		return "leasehold does not say that nothing is kept"
	case e.Verb == "ADD" && slices.ContainsFunc(past, isOfOther):
		return "leasehold assigns an address that another container of the network has"
	}
	return ""
}

func (e Exchange) String() string {
	return fmt.Sprintf("%s\n  host-local: exit %d %s %s\n  leasehold:  exit %d %s %s", e.Call,
		e.HostLocal.Exit, compact(e.HostLocal.Stdout), quote(e.HostLocal.Stderr),
		e.Leasehold.Exit, compact(e.Leasehold.Stdout), quote(e.Leasehold.Stderr))
}

func compact(s string) string { return strings.Join(strings.Fields(s), " ") }
