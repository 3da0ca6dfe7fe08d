package scenarios

import (
	"context"
	"slices"

	"github.com/leasehold-cni/leasehold/test/e2e/story"
)

// sideBySide runs scenarios on a bed with these nodes. They begin in their order, except that one does not wait for another
// that has other nodes. When the context ends no more of them begin. The results are in the order in which they ended.
func sideBySide(ctx context.Context, waiting []Scenario, all []string, run func(Scenario) story.Result) []story.Result {
	type ended struct {
		nodes  []string
		result story.Result
	}
	done := make(chan ended)
	taken := map[string]bool{}
	running := 0
	begin := func(s Scenario) (began bool) {
		nodes := s.nodeNames(all)
		if slices.ContainsFunc(nodes, func(n string) bool { return taken[n] }) {
			return false
		}
		for _, n := range nodes {
			taken[n] = true
		}
		running++
		go func() { done <- ended{nodes, run(s)} }()
		return true
	}
	var results []story.Result
	for waiting = slices.Clone(waiting); ; {
		if ctx.Err() == nil {
			waiting = slices.DeleteFunc(waiting, begin)
		}
		if running == 0 {
			return results
		}
		e := <-done
		running--
		for _, n := range e.nodes {
			delete(taken, n)
		}
		results = append(results, e.result)
	}
}
