package control

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestViewReservation(t *testing.T) {
	var object ipam.IPReservation
	err := yaml.UnmarshalStrict([]byte(`
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
`), &object)
	must.Succeed(t, err)
	want := &Reservation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0-5f1c9a02", UID: "r1", ResourceVersion: "7",
			Generation: 3, DeletionTimestamp: &metav1.Time{Time: noon.Add(-2 * time.Minute)}},
		Pod: "db-0", Node: "node1", PodUID: "u1",
		Addresses: "10.9.0.1,10.0.0.7,fd00::7", Primary: "10.0.0.7", Until: noon,
		Written: noon.Add(5*time.Second - 10*time.Minute), Window: lease.Window(10 * time.Minute),
		Releasing: true, Confirmed: true,
	}
	check.NoDiff(t, cmp.Diff(want, viewReservation(&object), cmp.Transformer("UTC", time.Time.UTC)))

	object.Spec.Release = "00000000000000a0"
	object.Status = ipam.IPReservationStatus{ID: "00000000000000a1", State: ipam.Bound, AddressList: "10.0.0.7",
		Window: "forever"}
	v := viewReservation(&object)
	if !v.Bound || v.Releasing || v.Window != lease.Forever || v.Addresses != "10.0.0.7" || v.Primary != "10.0.0.7" ||
		!v.Until.IsZero() {
		t.Errorf("marks of another lease count: %+v", v)
	}
}

// A hold is not over before the clock of its node can be past its end, even if that is three
// minutes behind.
func TestIsOver(t *testing.T) {
	end := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		r    Reservation
		late time.Duration
		want bool
	}{
		"at its end":          {Reservation{Until: end}, 0, false},
		"two minutes later":   {Reservation{Until: end}, 2 * time.Minute, false},
		"three minutes later": {Reservation{Until: end}, 3 * time.Minute, true},
		"forever":             {Reservation{}, 24 * time.Hour, false},
		"bound":               {Reservation{Until: end, Bound: true}, 24 * time.Hour, false},
	} {
		check.Equal(t, tt.r.IsOver(end.Add(tt.late)), tt.want, name)
	}
}
