package publish

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

// FuzzReservation has others write anything into the IPReservation of a pod. Only spec.release with
// the id of the lease releases its addresses, and an object that was written as planned needs no
// second write.
func FuzzReservation(f *testing.F) {
	f.Add([]byte(`{"spec":{"podName":"db-0","nodeName":"node1","nodeUID":"uid-1","release":"00000000000000a1"}}`))
	f.Add([]byte(`{"metadata":{"labels":{"a":"b"}},"status":{"conditions":[{"type":"Released","status":"True"},{}],` +
		`"heldUntil":"2026-11-21T12:01:00Z","addresses":[{}]}}`))
	f.Add([]byte(`{}`))
	l := held(bound("10.0.0.2", "00000000000000a1", time.Hour), time.Minute)
	view := maintain.NodeView{Leases: []lease.Lease{l}, Now: now}
	f.Fuzz(func(t *testing.T, published []byte) {
		var r ipamv1.IPReservation
		if json.Unmarshal(published, &r) != nil {
			return
		}
		p := makePlan(node, view, nil, map[kube.Name]*ipamv1.IPReservation{object: &r})
		if isReleased := len(p.Release) > 0; isReleased != (r.Spec.Release == l.ID) {
			t.Errorf("spec.release %q of lease %s: released %v", r.Spec.Release, l.ID, isReleased)
		}
		want := p.Objects[object].Object
		if want.Spec.Release != "" || want.Status.ID != l.ID || len(want.Status.Addresses) != 1 {
			t.Errorf("planned: %+v", want)
		}
		compare(&want, &r)
		want.Spec.Release = r.Spec.Release
		p = makePlan(node, view, nil, map[kube.Name]*ipamv1.IPReservation{object: &want})
		again := p.Objects[object].Object
		if c := compare(&again, &want); c != (change{}) {
			t.Errorf("written again: %+v of %+v and %+v", c, again, want)
		}
	})
}
