package costs

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// run returns a run whose API server uses 1 % of a processor while idle, 10 ms for a plain pod, and
// each ms more for a retained one.
func run(commit string, nodes int, each float64) Run {
	const seconds, recreated = 20, 200
	window := func(kind string, count int, ms float64, requests map[string]int) Window {
		return Window{Kind: kind, Took: seconds * time.Second, Recreations: count, Requests: requests,
			Named: map[string]int{}, Processor: map[string]time.Duration{apiServer: 200*time.Millisecond +
				time.Duration(float64(count)*ms*float64(time.Millisecond))}}
	}
	r := Run{Commit: commit, Nodes: nodes, Reservations: 30 * nodes, Pods: 24 * nodes, Rate: 10, Processors: 2,
		At: time.Date(2026, 1, 1, 0, 0, nodes, 0, time.UTC), Load: []float64{1, 2}, Pressure: []float64{3},
		Managers: []Manager{{1, 2, 3}}, Nominated: []time.Duration{time.Second}, Running: []time.Duration{time.Second},
		Accidents: []Accident{{Name: "outage", About: "away", Steady: 2, Agents: []int{0, 90}, Managers: []int{1, 10},
			Rejected: 7, Back: -1}}}
	named := map[string]int{"agent patch ipreservations/status": 2 * recreated, "manager get pods": recreated/2 - 1}
	for range 3 {
		late := window(Idle, 0, 0, map[string]int{"agent get nodes": 40, "manager get pods": 1})
		late.Named["manager get pods"] = 1
		retained := window(Retained, recreated, 10+each, maps.Clone(named))
		retained.Requests["agent get nodes"], retained.Named = 40, named
		plain := window(Plain, recreated, 10, map[string]int{"agent get nodes": 50})
		r.Windows = append(r.Windows, late, plain, retained)
	}
	return r
}

func TestPerRecreation(t *testing.T) {
	r := run("a", 50, 15)
	r.Windows[2].Processor[apiServer] += 2 * time.Second // in the first round, of 200 recreations
	all, net := r.processor(Retained, apiServer)
	if fmt.Sprint(all, net) != "[26 26 36] [25 25 35]" || median(net) != 25 {
		t.Errorf("the API server uses %v and %v ms", all, net)
	}
	if r.total() != 2.5 || r.writes() != 2 || r.idleRate() != 2 {
		t.Errorf("%v requests, %v writes, %v a second idle; want 2.5, 2, 2", r.total(), r.writes(), r.idleRate())
	}
	if got := r.share(Idle, apiServer); math.Abs(got-0.5) > 1e-6 {
		t.Errorf("idle it uses %v %%, want 0.5", got)
	}
}

func TestAtTarget(t *testing.T) {
	a := Accident{Steady: 2, Agents: make([]int, 70), Managers: make([]int, 70), Ended: 5}
	a.Agents[0], a.Agents[69], a.Managers[69] = 1000, 120, 60 // before its end; in the last minute: 3 a second
	if mean, peak := a.atTarget(100); mean != 50 || peak != 90 {
		t.Errorf("%v, %v; want 50, 90", mean, peak)
	}
}

func TestFitted(t *testing.T) {
	f := fitted([]float64{0, 1, 2, 3}, []float64{1, 3, 5, 7})
	if f.at0 != 1 || f.slope != 2 || f.residual != 0 || f.at(10) != 21 {
		t.Errorf("%+v", f)
	}
	if f := fitted([]float64{0, 1, 2}, []float64{0, 3, 0}); math.Abs(f.residual-math.Sqrt(6)) > 1e-9 {
		t.Errorf("%+v, want a residual of the square root of 6", f)
	}
}

// TestPage checks that the page says what was measured, and marks what was not.
func TestPage(t *testing.T) {
	runs := []Run{run("before", 50, 20), run("before", 2000, 60), run("now", 50, 10), run("now", 500, 11),
		run("now", 5000, 12), {Commit: "now", Nodes: 10, Reservations: 50000, Pods: 40000,
			Managers: []Manager{{1, 2, 3}}, Started: 4 * time.Second}}
	page, err := Page(runs)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 2000 | 0.5 | 10.0 | **70.0** (70.0 to 70.0) | 60.0 | 11.0, 71.0 | 36 |",
		"2000 nodes are 2.33 times 50; at 5000 nodes that gives *131.5 ms, 4.38 times* (extrapolated)",
		"5000 nodes are 1.10 times 50.",
		"| `agent patch ipreservations/status` | 2.00 |", "| `manager get pods` | 0.50 |",
		"| 50 | 2.5 | 2.0 | 2.00 ± 0.18 | 2.50 ± 0.20 | 2.00 ± 0.18 |",
		"| 5000 | away | 2.0 | 100 | 98 |  | 7 |  |  |",
		"| 50 | away | 2.0 | 100 | 98 | *0, 0* | 7 |  |  |",
		"| 10 | 50000, 40000 | 1, 2, 3 | | 4 s |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "agent get nodes") {
		t.Error("what is asked while idle counts for the recreations")
	}
	dir := t.TempDir()
	if err := Draw(dir, runs); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"scale.svg", "scale-accidents.svg"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(text), ">nodes<") && !strings.Contains(string(text), ">seconds<") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAdd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scale.json")
	for _, r := range []Run{run("a", 50, 1), run("b", 50, 2), run("a", 50, 3)} {
		if err := Add(path, r); err != nil {
			t.Fatal(err)
		}
	}
	runs, err := Read(path)
	if err != nil || len(runs) != 2 || runs[0].Commit != "b" || math.Abs(net(runs[1])-13) > 1e-6 {
		t.Errorf("%d runs, %v; want b and the later one of a", len(runs), err)
	}
}

// TestPageIsWritten checks that docs/scale.md is what the figures in docs/scale.json give.
func TestPageIsWritten(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs")
	runs, err := Read(filepath.Join(docs, "scale.json"))
	if err != nil || len(runs) == 0 {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	want, err := Page(runs)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(docs, "scale.md"))
	if err != nil || string(got) != want {
		t.Errorf("docs/scale.md differs from its figures (%v); run `.bed/bin/pinbench -page .`", err)
	}
}
