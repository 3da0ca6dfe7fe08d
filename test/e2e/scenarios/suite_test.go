package scenarios

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// timeoutMargin is how long before the -timeout of go test the last scenario ends: artefacts are
// collected, scenarios clean up and the cluster is stopped in that time.
const timeoutMargin = 6 * time.Minute

// A suite runs scenarios and records their results.
type suite struct {
	ctx    context.Context // done on an interrupt
	rig    *rig
	table  []scenario
	left   string        // which scenarios are left out, and why
	nodes  int           // number of nodes of the cluster
	limit  time.Duration // of one scenario
	failed string        // directory for the artefacts of failed scenarios

	start func() error // called once, before the first scenario

	mu      sync.Mutex
	results []result
	unclean bool // a cleanup failed
}

// A result is the result of a scenario.
type result struct {
	scenario scenario
	failed   bool
	reason   string // of the failure
	took     time.Duration
	cleanup  time.Duration
}

// installGroup is the group of scenarios about leasehold as installed, by administrators.
const installGroup = -1

// inGroup reports whether a scenario belongs to a group: those that use only node i, counted from
// 1, or with 0 those that use several or all nodes, except those of installGroup. In a cluster of
// fewer nodes, the last one takes the place of those that are missing.
func (s *suite) inGroup(sc scenario, i int) bool {
	if sc.installed {
		return i == installGroup
	}
	if len(sc.nodes) != 1 {
		return i == 0
	}
	return min(sc.nodes[0], s.nodes) == i
}

// runGroup runs the scenarios of a group one after the other, and then at the same time those that
// may.
func (s *suite) runGroup(t *testing.T, i int) {
	deadline, limited := t.Deadline()
	for _, sc := range s.table {
		if !s.inGroup(sc, i) {
			continue
		}
		switch {
		case s.ctx.Err() != nil:
			t.Fatalf("interrupted before %s", sc.name)
		case limited && time.Until(deadline) < timeoutMargin:
			t.Fatalf("%s is not started: -timeout leaves %v", sc.name, time.Until(deadline).Round(time.Second))
		}
		t.Run(sc.name, func(t *testing.T) {
			if sc.beside {
				t.Parallel()
			}
			s.run(t, sc)
		})
	}
}

func (s *suite) setUnclean() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unclean = true
}

// run runs one scenario. A panic fails only this one: artefacts are collected and the cleanups run.
func (s *suite) run(t *testing.T, sc scenario) {
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	until := began.Add(s.limit)
	if deadline, limited := t.Deadline(); limited && deadline.Add(-timeoutMargin).Before(until) {
		until = deadline.Add(-timeoutMargin)
	}
	ctx, cancel := context.WithDeadline(s.ctx, until)
	test := &Test{T: t, rig: s.rig, Ctx: ctx, suite: s, scenario: sc, began: began}
	r := result{scenario: sc}
	t.Cleanup(func() { // the last one
		cancel()
		r.cleanup = time.Since(began) - r.took
		test.checkOverlap()
		r.failed, r.reason = t.Failed(), test.reason
		s.mu.Lock()
		defer s.mu.Unlock()
		s.results = append(s.results, r)
	})
	collect := sync.OnceFunc(func() {
		if s.ctx.Err() != nil {
			return
		}
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		dir := filepath.Join(s.failed, sc.name)
		if err := test.Cluster.Collect(late, dir, test.NS, began); err != nil {
			t.Logf("collecting artefacts: %v", err)
		}
		t.Logf("the artefacts of %s are in %s", sc.name, dir)
	})
	// At the limit and not when the scenario returns, which may take long or never happen.
	stop := context.AfterFunc(ctx, collect)
	defer func() {
		if p := recover(); p != nil {
			test.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		r.took = time.Since(began)
		if timedOut := !stop(); timedOut || t.Failed() {
			collect()
		}
	}()
	t.Log(sc.about)
	test.prepare()
	sc.run(test)
	if ctx.Err() != nil {
		test.Errorf("out of time: %v", context.Cause(ctx))
	}
	test.checkOverlap()
}

// close prints the results of all scenarios, and the command that repeats those that failed.
func (s *suite) close(out io.Writer, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tab := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "SCENARIO\tTIME\tCLEANUP\tRESULT\tABOUT")
	var failed []string
	var reasons strings.Builder
	for _, r := range s.results {
		verdict := "passed"
		if r.failed {
			verdict = "FAILED"
			failed = append(failed, r.scenario.name)
			fmt.Fprintf(&reasons, "\n%s: %s\n", r.scenario.name, r.reason)
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\n",
			r.scenario.name, seconds(r.took), seconds(r.cleanup), verdict, r.scenario.about)
	}
	fmt.Fprintf(tab, "all\t%s\t\t\t\n", seconds(took))
	tab.Flush()
	fmt.Fprintf(out, "%s\n%s%d passed, %d failed\n", &reasons, s.left, len(s.results)-len(failed), len(failed))
	if len(failed) > 0 {
		fmt.Fprintf(out, "repeat them with: make e2e RUN='^(%s)$'\n", strings.Join(failed, "|"))
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
