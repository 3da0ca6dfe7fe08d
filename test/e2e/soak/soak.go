// Package soak judges the samples of a soak: whether a series grows without bound.
package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// Samples are the series of a run, by figure and by the name of the node, or "cluster".
type Samples map[string]map[string]Points

// Add adds a sample to a series.
func (s Samples) Add(figure, where string, at time.Duration, value float64) {
	if s[figure] == nil {
		s[figure] = map[string]Points{}
	}
	s[figure][where] = append(s[figure][where], Point{at, value})
}

// Points are the samples of a series, in the order of time.
type Points []Point

// A Point is one sample.
type Point struct {
	At    time.Duration // since the start
	Value float64
}

// median returns the median of the samples from a time on and before another, and their number.
func (p Points) median(from, to time.Duration) (float64, int) {
	var values []float64
	for _, point := range p {
		if point.At >= from && point.At < to {
			values = append(values, point.Value)
		}
	}
	if len(values) == 0 {
		return 0, 0
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 0 {
		return (values[middle-1] + values[middle]) / 2, len(values)
	}
	return values[middle], len(values)
}

// max returns the largest sample.
func (p Points) max() float64 {
	largest := 0.0
	for _, point := range p {
		largest = max(largest, point.Value)
	}
	return largest
}

// A Rule says how much a series may grow.
type Rule struct {
	Name string
	Unit string
	// Growth and Slack are how much larger the median of the last quarter may be than that of the
	// second: a fraction of it, and a number in the unit of the series.
	Growth, Slack float64
	// Settles is how long the series grows in any case. The first median is then of the quarter of
	// the run that follows.
	Settles time.Duration
	// Limit is the largest value that a sample may have. With a limit the series may grow.
	Limit float64
}

// A verdict is what a rule says about a series.
type verdict string

const (
	ok    verdict = "ok"
	grows verdict = "GROWS"
	open  verdict = "too few samples" // the series was not sampled for long enough
)

// least is how many samples a median has to be of.
const least = 10

// Judge applies the rules to the samples of a run, writes a table, and returns which series grow
// without bound, or have no samples.
func Judge(w io.Writer, samples Samples, rules []Rule) (bad []string) {
	length := time.Duration(0)
	for _, figure := range samples {
		for _, p := range figure {
			length = max(length, p[len(p)-1].At+1)
		}
	}
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer tab.Flush()
	fmt.Fprintln(tab, "SERIES\tWHERE\tFIRST\tLAST\tMAX\tUNIT\tVERDICT")
	for _, r := range rules {
		if len(samples[r.Name]) == 0 {
			bad = append(bad, r.Name+" has no samples")
		}
		for _, where := range slices.Sorted(maps.Keys(samples[r.Name])) {
			p := samples[r.Name][where]
			v, first, last := r.judge(p, length)
			fmt.Fprintf(tab, "%s\t%s\t%.4g\t%.4g\t%.4g\t%s\t%s\n", r.Name, where, r.shown(first), r.shown(last),
				r.shown(p.max()), r.Unit, v)
			if v == grows {
				bad = append(bad, r.Name+" of "+where+" grows without bound")
			}
		}
	}
	return bad
}

// judge returns the verdict on a series of a run, and the medians that it compares.
func (r Rule) judge(p Points, length time.Duration) (v verdict, first, last float64) {
	quarter := length / 4
	from := max(quarter, r.Settles)
	first, before := p.median(from, min(from+quarter, 3*quarter))
	last, after := p.median(3*quarter, length)
	switch {
	case r.Limit > 0 && p.max() > r.Limit, r.Limit == 0 && before >= least && after >= least &&
		last > first*(1+r.Growth)+r.Slack:
		v = grows
	case r.Limit == 0 && (before < least || after < least):
		v = open
	default:
		v = ok
	}
	return v, first, last
}
