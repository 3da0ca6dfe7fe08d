package netns_test

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestFullPool verifies that the error of a full pool says what the addresses are used for and when
// the next one is free, and that ADD succeeds then.
func TestFullPool(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", fourAddresses(nil))
	var held []string
	for i := range 4 {
		window := []string{"10", "20", "", ""}[i]
		sandbox, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("pod-", i), window))
		if window != "" {
			stop(t, sandbox, net)
			held = append(held, address)
		}
	}
	late := lab.NewPod("default", "late", "")
	_, err := node.Sandbox(late).Add(net)
	wantCode(t, err, 11, "no IP addresses available in range set: 10.1.0.10-10.1.0.13",
		"2 bound", "2 firmly held", "0 in cool-down")
	next := regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`).FindString(err.Error())
	until, parseErr := time.Parse(time.RFC3339, next)
	if left := time.Until(until); parseErr != nil || left < 8*time.Minute || left > 10*time.Minute {
		t.Errorf("%q says that the next hold ends at %q, want in 10 minutes", err, next)
	}

	node.Clock += 10*time.Minute + time.Second
	if _, address := start(t, node, net, late); address != held[0] {
		t.Errorf("got %s, want %s, whose hold has expired", address, held[0])
	}
	_, err = node.Sandbox(lab.NewPod("default", "later", "")).Add(net)
	wantCode(t, err, 11, "3 bound", "1 firmly held")
}

// TestFullPoolYields verifies that with onExhaustion yield the firm hold that expires first is
// released.
func TestFullPoolYields(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", fourAddresses(lab.Conf{"onExhaustion": "yield"}))
	var addresses []string
	for i, window := range []string{"30", "10", "20", "40"} {
		sandbox, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("db-", i), window))
		stop(t, sandbox, net)
		addresses = append(addresses, address)
	}
	for i, want := range []string{addresses[1], addresses[2], addresses[0], addresses[3]} {
		if _, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("web-", i), "")); address != want {
			t.Errorf("web-%d got %s, want %s", i, address, want)
		}
	}
}

// TestSquattedPool verifies that a namespace that firmly holds every address of a node, for bare
// pods, pods of Jobs and pods of a StatefulSet, keeps no pod of another namespace from starting,
// and that its pods go on to return to the addresses that did not have to yield.
func TestSquattedPool(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/26", nil)
	last := map[string]string{} // by pod
	for i := range 61 {
		pod := []string{"bare-%d", "job-%d-x7k2p", "db-%d"}[i%3]
		squatter := lab.NewPod("squatter", fmt.Sprintf(pod, i), "forever")
		sandbox, address := start(t, node, net, squatter)
		stop(t, sandbox, net)
		last[squatter.Name] = address
	}
	_, err := node.Sandbox(lab.NewPod("squatter", "more", "")).Add(net)
	wantCode(t, err, 11, "0 bound", "61 firmly held")
	for i, pod := range []lab.Pod{
		lab.NewPod("other", "bare", ""), lab.NewPod("other", "job-b8xkq", "10"), lab.NewPod("other", "db-0", "forever"),
	} {
		if _, address := start(t, node, net, pod); address != fmt.Sprintf("10.1.0.%d", 2+i) {
			t.Errorf("%s got %s, want that of the oldest hold", pod.Name, address)
		}
	}
	if _, address := start(t, node, net, lab.NewPod("squatter", "db-59", "forever")); address != last["db-59"] {
		t.Errorf("db-59 got %s, want %s", address, last["db-59"])
	}
}

// TestSoftHoldsAreReused verifies that addresses in a soft hold are assigned, oldest first, if no
// address is free.
func TestSoftHoldsAreReused(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", fourAddresses(nil))
	var addresses []string
	for i := range 4 {
		sandbox, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("web-", i), ""))
		stop(t, sandbox, net)
		addresses = append(addresses, address)
	}
	for i, want := range addresses {
		if _, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("api-", i), "")); address != want {
			t.Errorf("api-%d got %s, want %s", i, address, want)
		}
	}
}

// TestSoftHoldIsForTheSameUID verifies that a soft hold is for a new sandbox of the same pod, and
// not for another pod of the same name.
func TestSoftHoldIsForTheSameUID(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	pod := lab.NewPod("default", "web-0", "")
	first, original := start(t, node, net, pod)
	stop(t, first, net)
	second, address := start(t, node, net, pod)
	if address != original {
		t.Errorf("the same pod got %s, want %s", address, original)
	}
	stop(t, second, net)
	if _, address := start(t, node, net, recreated(pod)); address == original {
		t.Errorf("another pod of that name got %s, want another address", address)
	}
}

func TestParallelAdds(t *testing.T) {
	const pods = 64
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	var sandboxes []*lab.Sandbox
	for i := range pods {
		sandboxes = append(sandboxes, node.Sandbox(lab.NewPod("default", fmt.Sprint("pod-", i), "10")))
	}
	callAll(t, sandboxes, net, "ADD")
	addresses := map[string]bool{}
	for _, l := range node.Leases() {
		addresses[l.Address] = true
	}
	if len(addresses) != pods {
		t.Errorf("%d addresses for %d pods", len(addresses), pods)
	}
	callAll(t, sandboxes, net, "DEL")
	if held := node.Leases("--state", "held"); len(held) != pods {
		t.Errorf("%d holds, want %d", len(held), pods)
	}
}
