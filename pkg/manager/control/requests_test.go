package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

// A request is named to the agent of the node whose ranges contain its addresses. Of an address
// without a node the status says why.
func TestNameRequests(t *testing.T) {
	now := time.Now()
	r, a := poolsOf(t, setOf(t, reservationOf("away", "node2", isConfirmed)), &now), &api{}
	r.client = a
	r.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer r.queue.ShutDown()
	for i, node := range []string{"node1", "node2"} {
		four, six := fmt.Sprintf("10.0.%d.", i+1), fmt.Sprintf("fd00:%d::", i+1)
		must(t, r.pools.Update(&ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: node},
			Status: ipam.NodeAddressPoolStatus{Networks: []ipam.NetworkAddressPool{{Name: "net",
				Ranges: []ipam.AddressRange{{Start: four + "1", End: four + "254", Subnet: four + "0/24"},
					{Start: six + "1", End: six + "ff"}}},
				{Name: "shared", Ranges: []ipam.AddressRange{{Start: "192.168.0.1", End: "192.168.0.9"}}}}}}))
	}
	entry := func(pod, nodeName string, addresses ...string) ipam.AddressRequestEntry {
		return ipam.AddressRequestEntry{PodName: pod, NodeName: nodeName, Addresses: addresses}
	}
	must(t, r.requests.Replace([]any{&ipam.AddressRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db", UID: "r1", Generation: 3},
		Spec: ipam.AddressRequestSpec{Entries: []ipam.AddressRequestEntry{
			entry("db-0", "", "10.0.1.20", "fd00:1::20"), entry("db-1", "", "10.0.1.255"),
			entry("db-2", "node1", "192.168.0.5"),
			entry("db-3", "", "10.9.0.1"), entry("db-4", "", "192.168.0.6"), entry("db-5", "node2", "10.0.1.21"),
			entry("db-6", "", "10.0.1.22", "fd00:2::22"), entry("away", "", "10.0.1.23"), entry("db-7", "", "nonsense"),
		}},
		Status: ipam.AddressRequestStatus{Addresses: []ipam.RequestedAddress{
			{Address: "10.0.1.20", NodeName: "node1", State: ipam.RequestHeld},
			{Address: "10.0.1.99", NodeName: "node1", State: ipam.RequestHeld}}}}}, ""))
	name := func(story, want string) {
		t.Helper()
		_, err := r.Reconcile(t.Context(), allRequests)
		must(t, err)
		if got := fmt.Sprint(r.named, r.queue.Len()); got != want {
			t.Errorf("%s: %s, want %s", story, got, want)
		}
	}
	name("a request", "map[node1:[{{db db r1 3} [10.0.1.20 fd00:1::20 10.0.1.255 192.168.0.5]}]] 1")
	var shown []string
	for _, a := range a.status.states {
		shown = append(shown, fmt.Sprintf("%s@%s %s %s", a.Address, a.NodeName, a.State, a.Reason))
	}
	const want = "10.0.1.20@node1 Held , 10.0.1.21@ Rejected NoNode, 10.0.1.22@ Rejected NoNode, " +
		"10.0.1.23@ Waiting PodOnOtherNode, 10.9.0.1@ Rejected NoNode, 192.168.0.6@ Rejected SeveralNodes, " +
		"fd00:2::22@ Rejected NoNode, nonsense@ Rejected NoNode"
	if got := strings.Join(shown, ", "); got != want {
		t.Errorf("the status has %s, want %s", got, want)
	}
	must(t, r.requests.Replace(nil, ""))
	name("it was deleted", "map[] 1")
}
