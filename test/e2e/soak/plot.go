package soak

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/leasehold-cni/leasehold/test/e2e/draw"
)

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

// A Picture is a set of plots, each of the series with one name.
type Picture struct {
	File  string
	Names []string
}

// Pictures are the pictures of a soak.
var Pictures = []Picture{
	{"soak-agent.svg", []string{"agent_rss_bytes", "agent_heap_bytes", "agent_goroutines", "agent_fds",
		"agent_cpu_percent", "held"}},
	{"soak-manager.svg", []string{"manager_rss_bytes", "manager_heap_bytes", "manager_goroutines", "manager_fds",
		"manager_cpu_percent", "ipreservations"}},
	{"soak-files.svg", []string{"store_bytes", "journal_entries", "state_inodes", "run_inodes", "hostlocal_inodes",
		"bound"}},
	{"soak-api.svg", []string{"events", "etcd_bytes", "pods"}},
}

// Draw writes a picture as SVG. Series without samples are left out.
func (p Picture) Draw(path string, all []Series) error {
	var plots []draw.Plot
	for _, name := range p.Names {
		plots = append(plots, plotOf(name, all))
	}
	return draw.SVG(path, plots)
}

// plotOf plots the series of one name.
func plotOf(name string, all []Series) draw.Plot {
	rule := Rule{}
	if i := rank(name); i >= 0 {
		rule = Rules[i]
	}
	p := draw.Plot{Title: name, X: "minutes"}
	if rule.Unit != "" {
		p.Title += ", " + rule.Unit
	}
	for _, s := range all {
		if s.Name == name {
			p.Lines = append(p.Lines, draw.Line{Name: s.Where, Points: s.thinned(rule)})
		}
	}
	return p
}

// most is how many points a line has at most, so that the pictures are small.
const most = 160

// thinned returns at most as many points, each the median of those that it stands for.
func (p Points) thinned(rule Rule) plotter.XYs {
	length := p[len(p)-1].At + 1
	step := max(length/most, time.Second)
	var points plotter.XYs
	for from := time.Duration(0); from < length; from += step {
		if value, n := p.median(from, from+step); n > 0 {
			points = append(points, plotter.XY{X: from.Minutes(), Y: rule.shown(value)})
		}
	}
	return points
}
