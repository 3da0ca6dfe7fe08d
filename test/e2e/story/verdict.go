package story

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Judge reports whether a result is as expected, and returns its description. keeps says whether
// the plugin under test has retention.
func Judge(r Result, keeps bool) (good bool, text string) {
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

// Summarize prints the results of a run, which took the given time, and reports whether all are as
// expected.
func Summarize(w io.Writer, results []Result, keeps bool, took time.Duration) bool {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "SCENARIO\tTIME\tCLEANUP\tRESULT\tABOUT")
	passed := 0
	for _, r := range results {
		good, text := Judge(r, keeps)
		if good {
			passed++
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\n", r.Scenario.Name, seconds(r.Took), seconds(r.Tidying), text, r.Scenario.About)
	}
	fmt.Fprintf(tab, "all\t%s\t\t\t\n", seconds(took))
	tab.Flush()
	for _, r := range results {
		if good, text := Judge(r, keeps); !good {
			fmt.Fprintf(w, "\n%s: %s: %s\n", r.Scenario.Name, strings.ToLower(text), r.Text)
		}
	}
	fmt.Fprintf(w, "\n%d passed, %d failed\n", passed, len(results)-passed)
	return passed == len(results)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
