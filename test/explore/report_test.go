package explore

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// describe returns an event in words: its kind, whose constant says what happens, and what it is
// about.
func (w *simulation) describe(e event) string {
	text := string(e.kind)
	switch e.kind {
	case pass, wait, long, reboot, rebootEpoch, forward, back, correct, agent, lose, gc, wipe, wipePlain:
	case wipeOne, powerCut:
		text += ": " + e.cut
	default:
		text += " of sandbox " + w.sandboxName(e.sandbox)
	}
	if e.killed > 0 {
		text += ", killed"
	}
	return text
}

// path returns the events that first led to a state.
func (s *search) path(number int32) (out []event) {
	for n := number; n > 0; n = s.reached[n].from {
		out = append(out, s.reached[n].by)
	}
	slices.Reverse(out)
	return out
}

// failurePath returns the events that lead to the failure.
func (s *search) failurePath() []event {
	if s.failure.from < 0 {
		return nil
	}
	return append(s.path(s.failure.from), s.failure.by)
}

// counterExample repeats the events of a path, which break an invariant, and has the state after
// each in its canonical form.
func (s *search) counterExample(path []event, why string) string {
	s.prepare()
	var out strings.Builder
	fmt.Fprintf(&out, "a counter-example: %s\n", why)
	for i, e := range path {
		s.before = s.read()
		e, result, last := s.attempt(e)
		fmt.Fprintf(&out, "%3d. %s", i+1, s.describe(e))
		if e.killed > 0 {
			fmt.Fprintf(&out, " when it %s %s", last.kind, last.name)
		}
		fmt.Fprintf(&out, ": %s\n%s\n", result, s.form(s.read()))
		s.account(e, result)
	}
	return out.String()
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
