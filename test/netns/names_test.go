package netns_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestReservationName verifies that pods with names of their own come back to the addresses of
// their reservation name: all at the same time, and each address once. At the end there are twice
// as many pods; half of them get other addresses, and none waits.
func TestReservationName(t *testing.T) {
	const pods = 24
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	name := 0
	start := func(pods int) (sandboxes []*lab.Sandbox) {
		for range pods {
			name++
			pod := lab.NewPod("default", fmt.Sprint("registry-", name), "10")
			pod.Annotations["leasehold.dev/reserve-as"] = "registry"
			sandboxes = append(sandboxes, node.Sandbox(pod))
		}
		return sandboxes
	}
	all := func(verb string, sandboxes []*lab.Sandbox) {
		t.Helper()
		callAll(t, sandboxes, net, verb)
	}
	bound := func() []string {
		addresses := map[string]bool{}
		for _, l := range node.Leases("--state", "bound", "--reserve-as", "registry") {
			addresses[l.Address] = true
		}
		return slices.Sorted(maps.Keys(addresses))
	}

	first := start(pods)
	all("ADD", first)
	want := bound()
	if len(want) != pods {
		t.Fatalf("%d addresses for %d pods", len(want), pods)
	}
	for round := range 3 {
		all("DEL", first)
		for _, s := range first {
			s.Remove()
		}
		first = start(pods)
		all("ADD", first)
		if got := bound(); !slices.Equal(got, want) {
			t.Errorf("round %d: the pods have %v, want %v", round, got, want)
		}
	}
	all("DEL", first)
	for _, s := range first {
		s.Remove()
	}
	more := start(2 * pods)
	all("ADD", more)
	got := bound()
	if len(got) != 2*pods {
		t.Errorf("%d addresses for %d pods", len(got), 2*pods)
	}
	for _, a := range want {
		if !slices.Contains(got, a) {
			t.Errorf("nobody has %s, which is held for the name", a)
		}
	}
	if out, err := node.Leasectl("check"); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
}
