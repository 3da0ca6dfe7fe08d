package soak

import (
	"io"
	"slices"
	"testing"
)

func TestJudge(t *testing.T) {
	start := func(minute float64) float64 { return 20*mib + 5*mib*min(minute/15, 1) }
	for _, tt := range []struct {
		name  string
		value func(minute float64) float64 // of agent_heap_bytes
		grows bool
	}{
		{"constant", func(float64) float64 { return 47 }, false},
		{"grows while it starts", start, false},
		{"one peak at the end", func(m float64) float64 {
			if m > 118 {
				return 100 * mib
			}
			return start(m)
		}, false},
		{"leaks 5 MiB an hour", func(m float64) float64 { return start(m) + 5*mib*m/60 }, true},
		{"leaks 5 MiB an hour and is restarted early", func(m float64) float64 {
			if m < 10 {
				return 40 * mib
			}
			return start(m-10) + 5*mib*(m-10)/60
		}, true},
		{"less than the slack", func(m float64) float64 { return mib * m / 120 }, false},
	} {
		samples := Samples{}
		for series := range Slack {
			samples.Add(series, "cluster", 1)
		}
		delete(samples, "agent_heap_bytes")
		for i := range 240 {
			samples.Add("agent_heap_bytes", "node1", tt.value(float64(i)/2))
		}
		var want []string
		if tt.grows {
			want = []string{"agent_heap_bytes of node1 grows without bound"}
		}
		if got := Judge(io.Discard, samples); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", tt.name, got, want)
		}
	}
	if bad := Judge(io.Discard, Samples{}); len(bad) != len(Slack) {
		t.Errorf("without samples: %q", bad)
	}
}
