package publish

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

// change contains the parts of an object that must be written.
type change struct{ Spec, Status bool }

// compare returns the parts of the existing object that differ from the desired one. If existing is
// nil, these are all parts. compare ignores fields that the agent does not write: spec.release,
// other labels and other conditions.
func compare(want, existing *ipamv1.IPReservation) change {
	if existing == nil {
		return change{Spec: true, Status: true}
	}
	spec := existing.Spec
	spec.Release = ""
	c := change{Spec: spec != want.Spec}
	for key, value := range want.Labels {
		c.Spec = c.Spec || existing.Labels[key] != value
	}
	a, b := want.Status, existing.Status
	if isClose(a, b) {
		a.HeldUntil, b.HeldUntil = nil, nil
	}
	a.Conditions, b.Conditions = ours(a.Conditions), ours(b.Conditions)
	c.Status = !equality.Semantic.DeepEqual(a, b)
	return c
}

// ours returns the conditions that the agent writes. Server-side apply does not change the
// conditions of other field managers.
func ours(all []metav1.Condition) (own []metav1.Condition) {
	for _, c := range all {
		if c.Type == conditionReleased {
			own = append(own, c)
		}
	}
	return own
}

// isClose reports whether two values of HeldUntil differ by at most two seconds. The agent computes
// HeldUntil from the boot clock and the wall clock, which are not read at the same moment.
func isClose(a, b ipamv1.IPReservationStatus) bool {
	if a.HeldUntil == nil || b.HeldUntil == nil {
		return false
	}
	d := a.HeldUntil.Sub(b.HeldUntil.Time)
	return d.Abs() <= 2*time.Second
}
