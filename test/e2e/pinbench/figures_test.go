package pinbench

import (
	"strings"
	"testing"
	"time"
)

// TestPhases has an API server that uses 1 % of a processor while idle, 10 ms for a plain pod and
// 25 ms for a retained one, and another 10 ms for each of those of the first round.
func TestPhases(t *testing.T) {
	const took, recreated = 20 * time.Second, 200
	var all phases
	for round := range 3 {
		of := func(kind string, recreations int, each time.Duration) phase {
			return phase{kind: kind, took: took, recreations: recreations,
				processor: took/100 + time.Duration(recreations)*each}
		}
		late, none, kept := of(idle, 0, 0), of(plain, recreated, 10*time.Millisecond),
			of(retained, recreated, 25*time.Millisecond)
		if round == 0 {
			kept.processor += recreated * 10 * time.Millisecond
		}
		late.requests = map[string]int{"agent get nodes": 40, "manager get pods": 1}
		late.named = map[string]int{"manager get pods": 1}
		none.requests = map[string]int{"agent get nodes": 50}
		kept.named = map[string]int{"agent patch ipreservations/status": 2 * recreated,
			"manager get pods": recreated/2 - 1}
		kept.requests = map[string]int{"agent get nodes": 40,
			"agent patch ipreservations/status": 2 * recreated, "manager get pods": recreated/2 - 1}
		all = append(all, late, none, kept)
	}
	var out strings.Builder
	if err := all.print(&out); err != nil {
		t.Fatal(err)
	}
	want := `
API server's processor time for a plain pod: median (least to most of the rounds)     10.0 (10.0 to 10.0) ms
API server's processor time for a retained pod: median (least to most of the rounds)  25.0 (25.0 to 35.0) ms
leasehold's requests for a retained pod                                               2.5, of which 2.0 are writes
    agent patch ipreservations/status                                                 2.00
    manager get pods                                                                  0.50
leasehold's other requests a second, idle                                             2.00 ± 0.18
leasehold's other requests a second, plain                                            2.50 ± 0.20
leasehold's other requests a second, retained                                         2.00 ± 0.18
`
	if got := "\n" + out.String(); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}
