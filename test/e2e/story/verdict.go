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

// Summarize prints the table of a run, which took so long in all, and its last line, and tells whether all is well.
func Summarize(w io.Writer, results []Result, keeps bool, took time.Duration) bool {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "SCENARIO\tTIME\tTIDYING\tRESULT\tABOUT")
	passed := 0
	for _, r := range results {
		good, word := Judge(r, keeps)
		if good {
			passed++
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\n", r.Scenario.Name, seconds(r.Took), seconds(r.Tidying), word, r.Scenario.About)
	}
	fmt.Fprintf(tab, "all\t%s\t\t\t\n", seconds(took))
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
