package reservations

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

// The manager names a request to the agent of the node whose ranges contain its addresses, and
// shows why an address has no node.
func TestManagerNamesRequests(t *testing.T) {
	w := startManager(t)
	const group = "/apis/ipam.leasehold.dev/v1alpha1/"
	const requests = group + "namespaces/db/addressrequests/"
	node := func(name, shared string, subnet int) {
		four, six := fmt.Sprintf("10.0.%d.", subnet), fmt.Sprintf("fd00:%d::", subnet)
		w.Put(group+"nodeaddresspools/"+name, ipam.NodeAddressPool{Status: ipam.NodeAddressPoolStatus{
			Networks: []ipam.NetworkAddressPool{{Name: "net", Ranges: []ipam.AddressRange{
				{Start: four + "1", End: four + "254", Subnet: four + "0/24"}, {Start: six + "1", End: six + "ff"}}},
				{Name: "shared", Ranges: []ipam.AddressRange{{Start: shared + "1", End: shared + "9"}}}}}})
	}
	node("node1", "192.168.0.", 1)
	node("node2", "192.168.0.", 2)
	w.Put(group+"namespaces/db/ipreservations/away", ipam.IPReservation{
		Spec:   ipam.IPReservationSpec{PodName: "away", NodeName: "node2", NodeUID: "uid-2"},
		Status: ipam.IPReservationStatus{State: ipam.Bound, Confirmed: true}})
	entry := func(pod, nodeName string, addresses ...string) ipam.AddressRequestEntry {
		return ipam.AddressRequestEntry{PodName: pod, NodeName: nodeName, Addresses: addresses}
	}
	w.Put(requests+"db", ipam.AddressRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db", UID: "r1", Generation: 3},
		Spec: ipam.AddressRequestSpec{Entries: []ipam.AddressRequestEntry{
			entry("db-0", "", "10.0.1.20", "fd00:1::20"), entry("db-1", "", "10.0.1.255"),
			entry("db-2", "node1", "192.168.0.5"),
			entry("db-3", "", "10.9.0.1"), entry("db-4", "", "192.168.0.6"), entry("db-5", "node2", "10.0.1.21"),
			entry("db-6", "", "10.0.1.22", "fd00:2::22"), entry("away", "", "10.0.1.23"), entry("db-7", "", "nonsense"),
		}},
		Status: ipam.AddressRequestStatus{Addresses: []ipam.RequestedAddress{
			{Address: "10.0.1.20", NodeName: "node1", State: ipam.RequestHeld},
			{Address: "10.0.1.99", NodeName: "node1", State: ipam.RequestHeld}}}})
	named := func(want string) func() bool {
		return func() bool {
			var got []string
			for _, name := range []string{"node1", "node2"} {
				var p ipam.NodeAddressPool
				w.Get(group+"nodeaddresspools/"+name, &p)
				for _, ref := range p.Spec.Requests {
					got = append(got, fmt.Sprintf("%s %s/%s/%s/%d %v", name, ref.Namespace, ref.Name, ref.UID,
						ref.Generation, ref.Addresses))
				}
			}
			return strings.Join(got, ", ") == want
		}
	}
	w.Until("it is named", named("node1 db/db/r1/3 [10.0.1.20 fd00:1::20 10.0.1.255 192.168.0.5]"))
	var shown []string
	const want = "10.0.1.20@node1 Held , 10.0.1.21@ Rejected NoNode, 10.0.1.22@ Rejected NoNode, " +
		"10.0.1.23@ Waiting PodOnOtherNode, 10.9.0.1@ Rejected NoNode, 192.168.0.6@ Rejected SeveralNodes, " +
		"fd00:2::22@ Rejected NoNode, nonsense@ Rejected NoNode"
	w.Until("the states are shown", func() bool {
		var r ipam.AddressRequest
		w.Get(requests+"db", &r)
		shown = nil
		for _, a := range r.Status.Addresses {
			shown = append(shown, fmt.Sprintf("%s@%s %s %s", a.Address, a.NodeName, a.State, a.Reason))
		}
		return strings.Join(shown, ", ") == want
	})
	w.Remove(requests + "db")
	w.Until("it is not named after its deletion", named(""))
}
