package inspect

import (
	"strings"
	"testing"
)

const scrape = `# TYPE leasehold_addresses gauge
leasehold_addresses{network="cbr0",state="Bound"} 3
leasehold_addresses{network="cbr0",state="Held"} 2
leasehold_addresses{network="lan",state="Held"} 4
# TYPE leasehold_calls_total counter
leasehold_calls_total{verb="ADD",result="ok"} 7
# TYPE leasehold_call_duration_seconds histogram
leasehold_call_duration_seconds_bucket{verb="ADD",le="1"} 5
leasehold_call_duration_seconds_bucket{verb="ADD",le="+Inf"} 6
leasehold_call_duration_seconds_sum{verb="ADD"} 0.5
leasehold_call_duration_seconds_count{verb="ADD"} 6
`

func TestMetricsSum(t *testing.T) {
	m, err := ReadMetrics(strings.NewReader(scrape))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		labels []string
		want   float64
	}{
		{"leasehold_addresses", nil, 9},
		{"leasehold_addresses", []string{"state=Held"}, 6},
		{"leasehold_addresses", []string{"network=cbr0", "state=Held"}, 2},
		{"leasehold_addresses", []string{"network=none"}, 0},
		{"leasehold_calls_total", []string{"verb=ADD"}, 7},
		{"leasehold_call_duration_seconds", []string{"verb=ADD"}, 6},
		{"leasehold_nothing", nil, 0},
	}
	for _, tt := range tests {
		if got := m.Sum(tt.name, tt.labels...); got != tt.want {
			t.Errorf("Sum(%s, %v) = %v, want %v", tt.name, tt.labels, got, tt.want)
		}
	}
	if m.Has("leasehold_nothing") || !m.Has("leasehold_addresses") {
		t.Error("Has returned a wrong result")
	}
}
