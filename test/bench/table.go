package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A figure is one line of the table, which all parts share.
type figure struct {
	Figure string
	Unit   string // "" for a number of things

	Leasehold float64
	// Other is measured in the same run: host-local, or what Against names. 0 if there is none.
	Other   float64
	Against string

	Ratio float64 // of Leasehold to Other
	// Interval is the 95 % confidence interval of a ratio of medians of pairs.
	Interval *[2]float64

	Goal string
	Met  *bool
	Load float64 // load average of the last minute, when the figure was complete
}

const hostLocalName = "host-local"

// atMost adds a goal for the ratio, which other figures do not have.
func (f figure) atMost(goal float64) figure {
	met := f.Leasehold/f.Other <= goal
	f.Goal, f.Met = fmt.Sprintf("<= %.2f", goal), &met
	return f
}

// below adds a goal for leasehold's own value.
func (f figure) below(goal float64) figure {
	met := f.Leasehold <= goal
	f.Goal, f.Met = "<= "+number(goal)+unit(f.Unit), &met
	return f
}

// all are the lines of the table.
var all []figure

// add adds a line to the table, and prints it to stderr.
func (b *bench) add(f figure) {
	f.Load = loadAverage()
	if f.Other > 0 {
		if f.Against == "" {
			f.Against = hostLocalName
		}
		f.Ratio = f.Leasehold / f.Other
	}
	fmt.Fprintf(os.Stderr, "  %s\n", strings.Join(f.cells(), "  "))
	all = append(all, f)
}

// compare returns the figure of calls that are pairs: their medians in ms, and the ratio with its
// interval.
func compare(what string, ours, theirs []time.Duration) figure {
	_, low, high := medians(ours, theirs)
	return figure{Figure: what, Unit: "ms", Leasehold: inMS(percentile(ours, 50)), Other: inMS(percentile(theirs, 50)),
		Interval: &[2]float64{low, high}}
}

func inMS(d float64) float64 { return d / float64(time.Millisecond) }

func (f figure) cells() []string {
	cells := []string{f.Figure, number(f.Leasehold) + unit(f.Unit), "-", "-", f.Goal, ""}
	if f.Against != "" {
		cells[2], cells[3] = number(f.Other)+unit(f.Unit), strconv.FormatFloat(f.Ratio, 'f', 2, 64)
	}
	if f.Against != "" && f.Against != hostLocalName {
		cells[2] += " (" + f.Against + ")"
	}
	if f.Interval != nil {
		cells[3] += fmt.Sprintf(" (%.2f-%.2f)", f.Interval[0], f.Interval[1])
	}
	if f.Met != nil {
		cells[5] = map[bool]string{true: "yes", false: "NO"}[*f.Met]
	}
	return cells
}

func unit(u string) string {
	if u == "" {
		return ""
	}
	return " " + u
}

// number formats a value with three significant digits, or all of them before the point.
func number(v float64) string {
	switch {
	case v == float64(int64(v)) || v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// printTable prints all figures.
func printTable() {
	if len(all) == 0 {
		return
	}
	low, high := all[0].Load, all[0].Load
	for _, f := range all {
		low, high = min(low, f.Load), max(high, f.Load)
	}
	fmt.Printf("\nmedians, unless a line says otherwise; load average %.1f to %.1f on %d processors\n\n",
		low, high, runtime.NumCPU())
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tLEASEHOLD\tHOST-LOCAL\tRATIO\tGOAL\tMET")
	for _, f := range all {
		fmt.Fprintln(w, strings.Join(f.cells(), "\t"))
	}
	w.Flush()
}

// loadAverage returns the load average of the last minute.
func loadAverage() float64 {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(content), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return load
}
