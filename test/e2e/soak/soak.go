// Package soak judges the samples of a soak: whether a series grows without bound.
package soak

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// A Series is a figure of one node, or of the whole cluster, over time.
type Series struct {
	Where string // name of the node, or "cluster"
	Name  string
	Points
}

// Points are the samples of a series, in the order of time.
type Points []Point

// A Point is one sample.
type Point struct {
	At    time.Duration // since the start
	Value float64
}

// Read reads samples: after a line of titles, each line has the seconds since the start, the node,
// the name of the series and the value. It returns the series in the order of Rules, those of one
// name by their nodes.
func Read(r io.Reader) ([]Series, error) {
	in := csv.NewReader(r)
	in.FieldsPerRecord = 4
	if _, err := in.Read(); err != nil {
		return nil, err
	}
	all := map[[2]string]Points{}
	for {
		line, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		at, err := strconv.ParseFloat(line[0], 64)
		if err != nil {
			return nil, err
		}
		value, err := strconv.ParseFloat(line[3], 64)
		if err != nil {
			return nil, err
		}
		key := [2]string{line[2], line[1]}
		all[key] = append(all[key], Point{time.Duration(at * float64(time.Second)), value})
	}
	var found []Series
	for key, points := range all {
		found = append(found, Series{Where: key[1], Name: key[0], Points: points})
	}
	slices.SortFunc(found, func(a, b Series) int {
		if a.Name != b.Name {
			return cmp.Or(rank(a.Name)-rank(b.Name), cmp.Compare(a.Name, b.Name))
		}
		return cmp.Compare(a.Where, b.Where)
	})
	return found, nil
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

// A Verdict is what a rule says about a series.
type Verdict struct {
	Series
	Rule
	First, Last float64 // medians
	// OK is false if the series grows without bound. Open is true if it was not sampled for long
	// enough to say so.
	OK, Open bool
}

// least is how many samples a median has to be of.
const least = 10

// Judge applies the rules to the series of a run. A series that a rule is about and that has no
// samples is an error.
func Judge(all []Series, rules []Rule) ([]Verdict, error) {
	if len(all) == 0 {
		return nil, errors.New("there are no samples")
	}
	length := time.Duration(0)
	for _, s := range all {
		length = max(length, s.Points[len(s.Points)-1].At+1)
	}
	var verdicts []Verdict
	for _, rule := range rules {
		found := false
		for _, s := range all {
			if s.Name == rule.Name {
				found = true
				verdicts = append(verdicts, rule.judge(s, length))
			}
		}
		if !found {
			return nil, fmt.Errorf("there are no samples of %s", rule.Name)
		}
	}
	return verdicts, nil
}

func (r Rule) judge(s Series, length time.Duration) Verdict {
	quarter := length / 4
	from := max(quarter, r.Settles)
	v := Verdict{Series: s, Rule: r}
	first, before := s.median(from, min(from+quarter, 3*quarter))
	last, after := s.median(3*quarter, length)
	v.First, v.Last = first, last
	switch {
	case r.Limit > 0:
		v.OK = s.max() <= r.Limit
	case before < least || after < least:
		v.Open = true
	default:
		v.OK = last <= first*(1+r.Growth)+r.Slack
	}
	return v
}

// Table writes the verdicts as a table.
func Table(w io.Writer, verdicts []Verdict) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "SERIES\tWHERE\tFIRST\tLAST\tMAX\tUNIT\tVERDICT")
	for _, v := range verdicts {
		verdict := "ok"
		switch {
		case v.Open:
			verdict = "too few samples"
		case !v.OK:
			verdict = "GROWS"
		}
		fmt.Fprintf(tab, "%s\t%s\t%.4g\t%.4g\t%.4g\t%s\t%s\n", v.Series.Name, v.Where, v.shown(v.First),
			v.shown(v.Last), v.shown(v.max()), v.Unit, verdict)
	}
	return tab.Flush()
}
