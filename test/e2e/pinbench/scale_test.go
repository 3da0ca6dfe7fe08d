package pinbench

import (
	"testing"
	"time"
)

const metrics = `# TYPE apiserver_admission_webhook_admission_duration_seconds histogram
apiserver_admission_webhook_admission_duration_seconds_bucket{name="pods.leasehold.dev",operation="CREATE",rejected="false",type="admit",le="0.005"} 90
apiserver_admission_webhook_admission_duration_seconds_bucket{name="pods.leasehold.dev",operation="CREATE",rejected="false",type="admit",le="0.025"} 99
apiserver_admission_webhook_admission_duration_seconds_bucket{name="pods.leasehold.dev",operation="CREATE",rejected="false",type="admit",le="+Inf"} 100
apiserver_admission_webhook_admission_duration_seconds_sum{name="pods.leasehold.dev",operation="CREATE",rejected="false",type="admit"} 0.3
apiserver_admission_webhook_admission_duration_seconds_bucket{name="other.example.com",operation="CREATE",rejected="false",type="admit",le="+Inf"} 1000
`

func TestHistogram(t *testing.T) {
	now, err := parseHistogram(metrics, admissionHistogram, isOurs)
	if err != nil {
		t.Fatal(err)
	}
	if within, total := now.since(histogram{}, 5*time.Millisecond); within != 0.9 || total != 100 {
		t.Errorf("%v of %d within 5 ms, want 0.9 of 100", within, total)
	}
	if within, total := now.since(histogram{0.005: 80, 0.025: 80}, 5*time.Millisecond); total != 100 {
		t.Errorf("%v of %d", within, total)
	}
	before, err := parseHistogram(metrics, admissionHistogram, isOurs)
	if err != nil {
		t.Fatal(err)
	}
	if within, total := now.since(before, 5*time.Millisecond); within != 0 || total != 0 {
		t.Errorf("%v of %d within nothing", within, total)
	}
	if _, err := parseHistogram(admissionHistogram+`name="leasehold",operation="CREATE",le="x"} 1`, admissionHistogram,
		isOurs); err == nil {
		t.Error("an invalid line was accepted")
	}
}

// TestPopulation checks that every pod of a population has a unique name and address, and that pods
// share nodes.
func TestPopulation(t *testing.T) {
	c := population{Nodes: 5000, Reservations: 50000}
	names, addresses := map[string]bool{}, map[string]bool{}
	for i := range c.Reservations {
		names[c.namespace(i)+"/"+c.podName(i)] = true
		addresses[c.address(i)] = true
	}
	if len(names) != c.Reservations || len(addresses) != c.Reservations {
		t.Errorf("%d names and %d addresses for %d pods", len(names), len(addresses), c.Reservations)
	}
	if away := len(c.away()); away != c.Reservations/5 {
		t.Errorf("%d are away", away)
	}
}
