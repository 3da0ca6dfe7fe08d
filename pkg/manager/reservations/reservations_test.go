package reservations

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/yaml"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestViewReservation(t *testing.T) {
	var object ipam.IPReservation
	must(t, yaml.UnmarshalStrict([]byte(`
metadata:
  namespace: db
  name: db-0-5f1c9a02
  uid: r1
  resourceVersion: "7"
  generation: 3
  deletionTimestamp: "2026-11-21T11:58:00Z"
  labels: {a: b}
  annotations: {c: d}
  managedFields:
  - {manager: leasehold-agent, operation: Apply, subresource: status, time: "2026-11-21T11:50:05Z"}
  - {manager: kubectl-patch, operation: Update, time: "2026-11-21T11:55:00Z"}
spec: {podName: db-0, nodeName: node1, nodeUID: n1, release: 00000000000000a1}
status:
  id: 00000000000000a1
  state: Held
  addresses: [{network: blue, interface: net1, address: 10.9.0.1}, {network: cbr0, interface: eth0, address: 10.0.0.7},
    {network: cbr0, interface: eth0, address: "fd00::7"}]
  podUID: u1
  window: 10m0s
  confirmed: true
  heldUntil: "2026-11-21T12:00:00Z"
`), &object))
	want := &Reservation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0-5f1c9a02", UID: "r1", ResourceVersion: "7",
			Generation: 3, DeletionTimestamp: &metav1.Time{Time: noon.Add(-2 * time.Minute)}},
		Pod: "db-0", Node: "node1", NodeUID: "n1", PodUID: "u1",
		Addresses: "10.9.0.1,10.0.0.7,fd00::7", Primary: "10.0.0.7", Until: noon,
		Written: noon.Add(5*time.Second - 10*time.Minute), Window: lease.Window(10 * time.Minute),
		HasRelease: true, Releasing: true, Confirmed: true,
	}
	if diff := cmp.Diff(want, View(&object), cmp.Transformer("UTC", time.Time.UTC)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	object.Spec.Release = "00000000000000a0"
	object.Status = ipam.IPReservationStatus{ID: "00000000000000a1", State: ipam.Bound, AddressList: "10.0.0.7",
		Window: "forever"}
	v := View(&object)
	if !v.Bound || v.Releasing || v.Window != lease.Forever || v.Addresses != "10.0.0.7" || v.Primary != "10.0.0.7" ||
		!v.Until.IsZero() {
		t.Errorf("marks of another lease count: %+v", v)
	}
}

// maxView is the size of the largest view, in bytes.
const maxView = 12 << 10

// TestReservationWithLongTexts has a node write as much into a status as it may without the limits
// of the CRD.
func TestReservationWithLongTexts(t *testing.T) {
	long := func(c string) string { return strings.Repeat(c, 1<<20) }
	for _, addresses := range []ipam.IPReservationStatus{{AddressList: long("7")},
		{Addresses: []ipam.Address{{Network: long("n"), Interface: long("i"), Address: long("7")}}}} {
		status := addresses
		status.ID, status.PodUID, status.Reservation, status.Window = long("a"), long("u"), long("r"), long("1s")
		v := View(&ipam.IPReservation{Status: status, Spec: ipam.IPReservationSpec{Release: long("a")},
			ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": long("l")}}})
		if size := len(fmt.Sprintf("%+v", *v)); size > maxView {
			t.Errorf("the view has %d bytes", size)
		}
		if v.PodUID != "" || v.For != "" || v.Releasing || !strings.HasPrefix(v.Addresses, "777") {
			t.Errorf("a part of what is too long counts: %.200v", *v)
		}
	}
}
