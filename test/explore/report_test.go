package explore

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// describe returns an event in words: its kind, whose constant says what happens, and what it is
// about.
func (w *simulation) describe(e event) string {
	text := string(e.kind)
	switch e.kind {
	case pass, long, reboot, rebootEpoch, forward, back, correct, agent, lose, powerCut, gc, wipe, wipePlain:
	case wipeOne:
		text += ": " + e.cut
	default:
		text += " of sandbox " + w.sandboxName(e.sandbox)
	}
	if e.killed > 0 {
		text += ", killed"
	}
	return text
}

// describePath returns the events that first led to a state.
func (s *search) describePath(number int32) string {
	var out []string
	for n := number; n > 0; n = s.reached[n].from {
		out = append(out, s.describe(s.reached[n].by))
	}
	slices.Reverse(out)
	return strings.Join(out, "; ")
}

// counterExample repeats the shortest path to the failure and describes each step.
func (s *search) counterExample() string {
	path := s.failurePath()
	s.prepare()
	var out strings.Builder
	fmt.Fprintf(&out, "a counter-example: %s\n", s.failure.why)
	for i, e := range path {
		text, result := s.replay(e)
		fmt.Fprintf(&out, "%3d. %s", i+1, text)
		if result != "" {
			fmt.Fprintf(&out, ": %s", result)
		}
		fmt.Fprintf(&out, "\n     %s\n", s.summary())
	}
	return out.String()
}

// failurePath returns the events that lead to the failure.
func (s *search) failurePath() []event {
	var path []event
	if s.failure.from >= 0 {
		path = append(path, s.failure.by)
	}
	for n := s.failure.from; n > 0; n = s.reached[n].from {
		path = append(path, s.reached[n].by)
	}
	slices.Reverse(path)
	return path
}

// replay runs an event again.
func (w *simulation) replay(e event) (text, result string) {
	text = w.describe(e)
	if e.kind == powerCut {
		text += w.describeCut(e)
	}
	before, node := w.current, w.node
	out := w.do(e)
	records, kernel := w.records, w.kernel
	if e.killed > 0 {
		left := interrupted(before, w.splitRecords(records, e, before, node))[e.killed-1]
		text += fmt.Sprintf(" when it %s %s", left.last.kind, left.last.name)
		w.restore(left.image)
		w.node, w.kernel = node, kernel
		w.noteUnsynced(before, e)
		out = outcome{}
	}
	w.account(e, out)
	return text, out.String()
}

func (w *simulation) describeCut(e event) string {
	out := ""
	for i, name := range sortedKeys(w.unsynced) {
		switch letter := e.cut[i]; {
		case letter == unchanged:
		case letter == emptied:
			out += "; " + name + " is empty"
		case w.unsynced[name][letter-'a'].missing:
			out += "; " + name + " is missing"
		default:
			out += fmt.Sprintf("; %s has its earlier content: %q", name, w.unsynced[name][letter-'a'].Content)
		}
	}
	return out
}

func (o outcome) String() string {
	if o.err != nil {
		return "refused: " + o.err.Error()
	}
	out := ""
	for _, a := range o.addrs {
		if a.IsValid() {
			out += " " + a.String()
		}
	}
	return strings.TrimSpace(out)
}

// summary returns a state in one line.
func (w *simulation) summary() string {
	c := w.read()
	var parts []string
	if c.absent != nil {
		parts = append(parts, "no store")
	}
	now := w.kernel.now()
	for _, l := range c.leases {
		parts = append(parts, describeLease(l, now))
	}
	for _, name := range sortedKeys(w.current.Files) {
		if mirrored(name) {
			id, _, _ := strings.Cut(w.current.Files[name].Content, "\r\n")
			parts = append(parts, fmt.Sprintf("file %s %.40q", strings.TrimPrefix(name, netsDir+"/"), id))
		}
	}
	for b := range w.sandboxCount() {
		if w.spaces[b].alive() {
			parts = append(parts, fmt.Sprintf("%s alive with %s", w.sandboxName(b), outcome{addrs: w.spaces[b].addrs}))
		}
	}
	return "[" + strings.Join(parts, "; ") + "]"
}

func describeLease(l lease.Lease, now lease.Instant) string {
	text := fmt.Sprintf("%s %s %s by %s", l.Address, l.State, l.Name, l.Holder.ContainerID)
	if l.State == lease.Held {
		text += fmt.Sprintf(" firm=%v for %s", l.Firm, l.Remaining(now).Round(time.Minute))
	}
	return text
}

// row returns a line of the table.
func (s *search) row() string {
	extent := fmt.Sprintf("depth %d", s.depth)
	switch {
	case s.complete:
		extent = "complete, depth " + fmt.Sprint(s.depth)
	case s.failure != nil:
		extent = "FAILED at depth " + fmt.Sprint(len(s.failurePath()))
	}
	seconds := time.Since(s.begun).Seconds()
	return fmt.Sprintf("%-14s %9d %12d %9.1f   %-22s %5.2f ms each, %d merges compared",
		s.name, len(s.reached), s.transitions, seconds, extent, 1000*seconds/float64(max(s.transitions, 1)), s.compared)
}

const heading = "model             states  transitions   seconds   extent"
