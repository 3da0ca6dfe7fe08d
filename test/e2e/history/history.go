// Package history records which sandbox has which address, as it is seen in the network namespaces,
// and has porcupine check the history: an address has one holder at a time, and a retained pod that
// returns has the address that it had.
package history

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// A Span is how long a sandbox had an address.
type Span struct {
	Sandbox string // name of its network namespace
	Address netip.Addr
	// After is a time at which it did not have the address yet, First and Last are when it was seen
	// with it first and last, and Before is a time at which it did not have it any more, or zero.
	After, First, Last, Before time.Time
	Pod                        // empty if it is not known
}

// A Pod is whose sandbox it is.
type Pod struct {
	Name   string        // with its namespace
	Node   string        // that the sandbox is on
	Window time.Duration // for which its address is held while it is away, 0 if it is not
}

// A Recorder makes spans of what is seen.
type Recorder struct {
	mu    sync.Mutex
	begin time.Time // of the last pass
	open  map[holding]*Span
	ended []*Span
	pods  map[string]Pod // by sandbox
}

type holding struct {
	sandbox string
	address netip.Addr
}

// Seen records a pass over all network namespaces, which began and ended at these times: the
// addresses in each of them, and the namespaces that could not be read.
func (r *Recorder) Seen(begin, end time.Time, found map[string][]netip.Addr, unread map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		r.open = map[holding]*Span{}
	}
	for sandbox, addresses := range found {
		for _, a := range addresses {
			s := r.open[holding{sandbox, a}]
			if s == nil {
				s = &Span{Sandbox: sandbox, Address: a, After: r.begin, First: end}
				r.open[holding{sandbox, a}] = s
			}
			s.Last = begin
		}
	}
	for h, s := range r.open {
		if s.Last != begin && !unread[h.sandbox] {
			s.Before = end
			r.ended = append(r.ended, s)
			delete(r.open, h)
		}
	}
	r.begin = begin
}

// Belongs records whose sandbox it is.
func (r *Recorder) Belongs(sandbox string, pod Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pods == nil {
		r.pods = map[string]Pod{}
	}
	r.pods[sandbox] = pod
}

// Spans returns all spans in the order in which they began.
func (r *Recorder) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Span
	for _, s := range r.ended {
		all = append(all, *s)
	}
	for _, s := range r.open {
		all = append(all, *s)
	}
	for i := range all {
		all[i].Pod = r.pods[all[i].Sandbox]
	}
	slices.SortStableFunc(all, func(a, b Span) int { return a.First.Compare(b.First) })
	return all
}

// Write writes spans as lines.
func Write(w io.Writer, spans []Span) error {
	for _, s := range spans {
		if _, err := fmt.Fprintln(w, s); err != nil {
			return err
		}
	}
	return nil
}

func (s Span) String() string {
	const form = "15:04:05.000"
	return fmt.Sprintf("%v in %s of %q on %q from %s/%s to %s/%s, window %v", s.Address, s.Sandbox, s.Name, s.Node,
		s.After.Format(form), s.First.Format(form), s.Last.Format(form), s.Before.Format(form), s.Window)
}

// Check returns a description of each address that had two holders, and of each pod that returned
// to another address.
func Check(spans []Span) (wrong []string) {
	type operations func([]Span) []porcupine.Operation
	check := func(model porcupine.Model, what string, groups map[string][]Span, steps operations) {
		for key, group := range groups {
			if !porcupine.CheckOperations(model, steps(group)) {
				var lines []string
				for _, s := range group {
					lines = append(lines, s.String())
				}
				wrong = append(wrong, fmt.Sprintf("%s %s:\n  %s", key, what, strings.Join(lines, "\n  ")))
			}
		}
	}
	byAddress, byPod := map[string][]Span{}, map[string][]Span{}
	for _, s := range spans {
		byAddress[s.Address.String()] = append(byAddress[s.Address.String()], s)
		if s.Name != "" {
			family := map[bool]string{true: "IPv4", false: "IPv6"}[s.Address.Is4()]
			byPod[s.Name+" "+family] = append(byPod[s.Name+" "+family], s)
		}
	}
	check(exclusive, "had two holders", byAddress, holds)
	check(register, "returned to another address", byPod, returns)
	slices.SortFunc(wrong, cmp.Compare[string])
	return wrong
}

// A step is an operation on an address or on a pod's register.
type step struct {
	take, give string // the sandbox that gets the address, or loses it
	write      string // the address that a pod gets
	read       string // the address that a pod returns to
}

// exclusive is an address: its state is the sandbox that has it.
var exclusive = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		if in := input.(step); in.take != "" {
			return state == "", in.take
		} else {
			return state == in.give, ""
		}
	},
}

// register is a pod: its state is the address that it had last.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		if in := input.(step); in.write != "" {
			return true, in.write
		} else {
			return state == in.read, state
		}
	},
}

// holds returns the operations on an address: each sandbox takes it at some time after it did not
// have it and before it was seen with it, and gives it up accordingly.
func holds(spans []Span) (ops []porcupine.Operation) {
	for _, s := range spans {
		ops = append(ops, operation(step{take: s.Sandbox}, s.After, s.First))
		if !s.Before.IsZero() {
			ops = append(ops, operation(step{give: s.Sandbox}, s.Last, s.Before))
		}
	}
	return ops
}

// returns returns the operations on the register of a pod. A sandbox reads it if the pod is back on
// its node within its window. If the former sandbox was still there, the pod may get another
// address: the plugin waits for it until busyTimeout has passed.
func returns(spans []Span) (ops []porcupine.Operation) {
	var last *Span
	for _, s := range spans {
		in := step{write: s.Address.String()}
		if last != nil && last.Node == s.Node && !last.Before.IsZero() && last.Before.Before(s.After) &&
			s.First.Sub(last.Last) < last.Window {
			in = step{read: s.Address.String()}
		}
		ops = append(ops, operation(in, s.After, s.First))
		last = &s
	}
	return ops
}

func operation(in step, call, end time.Time) porcupine.Operation {
	return porcupine.Operation{Input: in, Call: call.UnixNano(), Return: end.UnixNano()}
}
