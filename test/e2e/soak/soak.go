// Package soak judges the samples of a soak: whether a series grows without bound.
package soak

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// Samples are the series of a run in the order of time, by what is counted and where.
type Samples map[string]map[string][]float64

// Add adds a sample to a series.
func (s Samples) Add(series, where string, value float64) {
	if s[series] == nil {
		s[series] = map[string][]float64{}
	}
	s[series][where] = append(s[series][where], value)
}

const mib = 1 << 20

// Slack is by how much each series may grow, in addition to a tenth.
var Slack = map[string]float64{
	"agent_heap_bytes":    2 * mib,
	"agent_goroutines":    3,
	"agent_fds":           2,
	"manager_heap_bytes":  4 * mib,
	"manager_goroutines":  10,
	"manager_fds":         3,
	"store_bytes":         2 * mib, // until the journal has all its entries
	"state_files":         1,
	"run_files":           3,
	"hostlocal_files":     8,
	"ipreservations":      5,
	"nodeaddresspools":    0,
	"persistentpodstates": 2,
	"leases":              1,
	"pods":                5,
}

// least is how many samples a median has to be of.
const least = 10

// Judge writes a table of the samples of a run, and returns which series grow without bound, or
// have no samples: the median of the last quarter is compared with that of the second, because
// programs grow while they start.
func Judge(w io.Writer, samples Samples) (bad []string) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer tab.Flush()
	fmt.Fprintln(tab, "SERIES\tWHERE\tSECOND QUARTER\tLAST QUARTER\tMAX\tVERDICT")
	for _, series := range slices.Sorted(maps.Keys(Slack)) {
		if len(samples[series]) == 0 {
			bad = append(bad, series+" has no samples")
		}
		for _, where := range slices.Sorted(maps.Keys(samples[series])) {
			values := samples[series][where]
			quarter, verdict := len(values)/4, "ok"
			before, after := median(values[quarter:2*quarter]), median(values[3*quarter:])
			switch {
			case quarter < least:
				verdict = "too few samples"
			case after > before*1.1+Slack[series]:
				verdict = "GROWS"
				bad = append(bad, series+" of "+where+" grows without bound")
			}
			fmt.Fprintf(tab, "%s\t%s\t%.4g\t%.4g\t%.4g\t%s\n", series, where, before, after, slices.Max(values),
				verdict)
		}
	}
	return bad
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
