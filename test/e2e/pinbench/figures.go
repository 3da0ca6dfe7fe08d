package pinbench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// The kinds of a phase.
const (
	idle     = "idle"     // nothing is recreated
	plain    = "plain"    // pods without leasehold's annotation are recreated
	retained = "retained" // pods with it are recreated
)

// A phase is a time in which one kind of pod is recreated at a fixed rate.
type phase struct {
	kind        string
	took        time.Duration
	recreations int
	processor   time.Duration // of the API server
	// requests are those of leasehold's accounts, such as "agent get nodes". named are those of
	// them that name a retained pod that was recreated in this or an earlier phase, or an
	// IPReservation or Event that is named after it.
	requests, named map[string]int
}

// phases are the phases of a measurement, in rounds of one of each kind, the idle one first.
type phases []phase

// perRecreation returns, for each round, the API server's processor time per recreation of a kind
// in milliseconds, without what it uses in the same time of the round's idle phase. They are
// sorted.
func (all phases) perRecreation(kind string) (net []float64) {
	var rest phase
	for _, w := range all {
		switch {
		case w.kind == idle:
			rest = w
		case w.kind == kind && w.recreations > 0:
			used := float64(w.processor) - float64(rest.processor)*float64(w.took)/float64(rest.took)
			net = append(net, used/1e6/float64(w.recreations))
		}
	}
	slices.Sort(net)
	return net
}

// otherRate returns leasehold's requests per second in a kind of phases that do not name a pod
// that was recreated, and its standard error, if these requests are independent of each other.
func (all phases) otherRate(kind string) (rate, uncertainty float64) {
	total, took := 0, time.Duration(0)
	for _, w := range all {
		if w.kind != kind {
			continue
		}
		took += w.took
		for name, n := range w.requests {
			total += n - w.named[name]
		}
	}
	return float64(total) / took.Seconds(), math.Sqrt(float64(total)) / took.Seconds()
}

// A count is a number of requests per recreation.
type count struct {
	name string
	each float64
}

// perName returns the requests that name recreated pods, per recreation, the largest first.
func (all phases) perName() (list []count) {
	named, recreations := map[string]int{}, 0
	for _, w := range all { // a late one is in the phase after
		for name, n := range w.named {
			named[name] += n
		}
		if w.kind == retained {
			recreations += w.recreations
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		list = append(list, count{name, float64(named[name]) / float64(recreations)})
	}
	slices.SortStableFunc(list, func(a, b count) int { return cmp.Compare(b.each, a.each) })
	return list
}

// print writes the figures of the phases as a table.
func (all phases) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, kind := range []string{plain, retained} {
		net := all.perRecreation(kind)
		fmt.Fprintf(w, "API server's processor time for a %s pod: median (least to most of the rounds)\t"+
			"%.1f (%.1f to %.1f) ms\n", kind, median(net), net[0], net[len(net)-1])
	}
	total, writes := 0.0, 0.0
	list := all.perName()
	for _, c := range list {
		total += c.each
		if slices.Contains([]string{"create", "update", "patch", "delete"}, strings.Fields(c.name)[1]) {
			writes += c.each
		}
	}
	fmt.Fprintf(w, "leasehold's requests for a retained pod\t%.1f, of which %.1f are writes\n", total, writes)
	for _, c := range list {
		fmt.Fprintf(w, "    %s\t%.2f\n", c.name, c.each)
	}
	for _, kind := range []string{idle, plain, retained} {
		rate, uncertainty := all.otherRate(kind)
		fmt.Fprintf(w, "leasehold's other requests a second, %s\t%.2f ± %.2f\n", kind, rate, uncertainty)
	}
	return w.Flush()
}

// median returns the median of sorted values, NaN if there is none.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
