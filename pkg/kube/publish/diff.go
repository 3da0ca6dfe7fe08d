package publish

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

// Change is what has to be written so that an object is as it should be.
type Change struct{ Spec, Status bool }

// Compare returns it. there is nil for an object that is not there. What others wrote beside our fields does not count.
func Compare(want *ipamv1.IPReservation, there *ipamv1.IPReservation) Change {
	if there == nil {
		return Change{Spec: true, Status: true}
	}
	spec := there.Spec
	spec.Release = ""
	c := Change{Spec: spec != want.Spec}
	for key, value := range want.Labels {
		c.Spec = c.Spec || there.Labels[key] != value
	}
	a, b := want.Status, there.Status
	if isClose(a, b) {
		a.HeldUntil, b.HeldUntil = nil, nil
	}
	a.Conditions, b.Conditions = ours(a.Conditions), ours(b.Conditions)
	c.Status = !equality.Semantic.DeepEqual(a, b)
	return c
}

// ours are the conditions that the agent sets. Others' are not its to remove: an applied configuration leaves them.
func ours(all []metav1.Condition) (own []metav1.Condition) {
	for _, c := range all {
		if c.Type == ConditionReleased {
			own = append(own, c)
		}
	}
	return own
}

// isClose: an end is reckoned anew each time, from two clocks. What has moved by no more than their jitter stands.
func isClose(a, b ipamv1.IPReservationStatus) bool {
	if a.HeldUntil == nil || b.HeldUntil == nil {
		return false
	}
	d := a.HeldUntil.Sub(b.HeldUntil.Time)
	return d.Abs() <= 2*time.Second
}
