package story

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Judge says of a result whether it is as it should be, and how to put it. keeps tells whether the plugin under test
// is one that keeps addresses.
func Judge(r Result, keeps bool) (good bool, word string) {
	switch {
	case r.Outcome == Broken:
		return false, "FAILED"
	case keeps || !r.Scenario.Keeps:
		if r.Outcome == Lost {
			return false, "ADDRESS LOST"
		}
		return true, "passed"
	case r.Outcome == Lost:
		return true, "expected failure"
	default:
		return false, "PASSED, NOT EXPECTED"
	}
}

// Summarize prints the table of a run and its last line, and tells whether all is well.
func Summarize(w io.Writer, results []Result, keeps bool) bool {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "SCENARIO\tTIME\tRESULT\tABOUT")
	passed := 0
	var total time.Duration
	for _, r := range results {
		good, word := Judge(r, keeps)
		if good {
			passed++
		}
		total += r.Took
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\n", r.Scenario.Name, seconds(r.Took), word, r.Scenario.About)
	}
	fmt.Fprintf(tab, "\t%s\t\t\n", seconds(total))
	tab.Flush()
	for _, r := range results {
		if good, word := Judge(r, keeps); !good {
			fmt.Fprintf(w, "\n%s: %s: %s\n", r.Scenario.Name, strings.ToLower(word), r.Text)
		}
	}
	fmt.Fprintf(w, "\n%d passed, %d failed\n", passed, len(results)-passed)
	return passed == len(results)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
