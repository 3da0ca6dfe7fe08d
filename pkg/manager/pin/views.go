package pin

import (
	"bytes"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// A reservation has the fields of an IPReservation that the pin needs. (An IPReservation is the API
// object that shows the addresses of a pod on a node.) The informers keep reservations and podViews
// instead of the API objects: with 50,000 of each, they make up most of the manager's memory.
type reservation struct {
	metav1.ObjectMeta // namespace, name, UID, resource version, generation

	Pod, Node, NodeUID string
	For                string // the reservation name; "" if the addresses are for pods of the same name
	ID, PodUID         string
	Bound              bool
	Confirmed          bool         // the pod can start on the node
	Addresses          string       // joined by commas
	Until              time.Time    // end of the hold; zero if bound, or if the hold has no end
	Written            time.Time    // when the agent last changed the status, by the API server's clock
	Window             lease.Window // 0 if not known
	HasRelease         bool         // a user has set spec.release
	Releasing          bool         // a user has asked to release these addresses
	Abandoned          bool         // no pod is pinned to it again
}

// viewReservation returns the reservation of an API object.
func viewReservation(r *ipam.IPReservation) *reservation {
	v := &reservation{
		ObjectMeta: identity(&r.ObjectMeta),
		Pod:        r.Spec.PodName,
		For:        intern(r.Status.Reservation),
		Node:       intern(r.Spec.NodeName),
		NodeUID:    intern(r.Spec.NodeUID),
		ID:         r.Status.ID,
		PodUID:     r.Status.PodUID,
		Bound:      r.Status.State == ipam.Bound,
		Confirmed:  r.Status.Confirmed,
		Addresses:  addressList(r.Status),
		HasRelease: r.Spec.Release != "",
		Releasing:  r.Spec.Release != "" && r.Spec.Release == r.Status.ID,
		Abandoned:  r.Status.ID != "" && r.Annotations[wellknown.AnnotationPinAbandoned] == r.Status.ID,
	}
	v.Generation = r.Generation
	if r.Status.HeldUntil != nil {
		v.Until = r.Status.HeldUntil.Time
	}
	v.Window, _ = policy.ParseWindow(r.Status.Window)
	for _, f := range r.ManagedFields {
		if f.Subresource == "status" && f.Time != nil && f.Time.After(v.Written) {
			v.Written = f.Time.Time
		}
	}
	return v
}

// addressList returns the addresses of a status, joined by commas.
func addressList(s ipam.IPReservationStatus) string {
	if s.AddressList != "" {
		return s.AddressList
	}
	var list []string
	for _, a := range s.Addresses {
		list = append(list, a.Address)
	}
	return strings.Join(list, ",")
}

// A podView has the fields of a retained pod that the pin needs.
type podView struct {
	metav1.ObjectMeta // namespace, name, UID, resource version, creation and deletion time

	Node       string // "" until the pod is bound
	BoundAt    time.Time
	Controlled bool // the pod has a controller, which will recreate it
	Window     lease.Window
	For        string // the reservation name; "" if the pod's addresses are for pods of the same name
	Workload   string // what created the pod, if it has a reservation name (workloadOf)
	Expected   string // the addresses that a pod with a reservation name was pinned to

	Gated  bool   // has the gate of the pin
	Gates  int    // number of scheduling gates, of all kinds
	Pinned string // the pinned node; "" if none, or if the pod is not retained: a user wrote the annotation
	Reason string // of the decision, as in the annotation of the pod
	// Required reports whether the mode is require, and the pod is not bound and can run only on
	// the pinned node.
	Required    bool
	Tolerations []corev1.Toleration // nil unless Required
	Nominated   string              // the nominated node
	// NominatedByUs reports whether the manager was the last to write Nominated, according to the
	// managed fields.
	NominatedByUs bool
	NeverPreempts bool // by its preemption policy

	// NotScheduled is why a scheduler that has tried the pod did not place it. It is "" as long as
	// no scheduler has tried the pod, for example because gates prevent it.
	NotScheduled     string
	Unschedulable    bool // the reason in NotScheduled is "Unschedulable"
	UnschedulableWhy string
	Evicted          bool // through the eviction API
	Failed, Started  bool // the phase is Failed; the pod has addresses, so its sandbox was created
	Succeeded        bool // the phase is Succeeded
	Addresses        string
}

// viewPod returns the podView of a pod.
func viewPod(p *corev1.Pod) *podView {
	v := &podView{
		ObjectMeta: identity(&p.ObjectMeta),
		Node:       intern(p.Spec.NodeName),
		Controlled: metav1.GetControllerOfNoCopy(p) != nil,
		Gated:      gated(p),
		Gates:      len(p.Spec.SchedulingGates),
		Nominated:  intern(p.Status.NominatedNodeName),

		NominatedByUs: p.Status.NominatedNodeName != "" && nominatedByUs(p.ManagedFields),
		NeverPreempts: p.Spec.PreemptionPolicy != nil && *p.Spec.PreemptionPolicy == corev1.PreemptNever,

		Failed:    p.Status.Phase == corev1.PodFailed,
		Started:   len(p.Status.PodIPs) > 0,
		Succeeded: p.Status.Phase == corev1.PodSucceeded,
	}
	v.Window, _ = policy.ParseWindow(p.Annotations[policy.Annotation])
	if v.For = reservationName(p); v.For != "" {
		v.Workload = intern(workloadOf(p))
		v.Expected = p.Annotations[wellknown.AnnotationExpectedAddresses]
	}
	var ips []string
	for _, ip := range p.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	v.Addresses = strings.Join(ips, ",")
	if v.Window != 0 {
		v.Pinned = intern(p.Annotations[wellknown.AnnotationPinnedNode])
	}
	if v.Window != 0 && (p.Spec.NodeName == "" || v.Pinned != v.Node) {
		v.Reason = intern(p.Annotations[wellknown.AnnotationPinReason])
	}
	if p.Spec.NodeName == "" {
		if v.Required = modeIn(v.Reason) == policy.PinRequire && requires(p, v.Pinned); v.Required {
			v.Tolerations = p.Spec.Tolerations
		}
	}
	v.setConditions(p.Status.Conditions)
	return v
}

// setConditions sets the fields that come from a pod's conditions.
func (v *podView) setConditions(conditions []corev1.PodCondition) {
	for _, c := range conditions {
		switch {
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue:
			v.BoundAt = c.LastTransitionTime.Time
		case c.Type == corev1.PodScheduled && c.Reason != "" && c.Reason != corev1.PodReasonSchedulingGated:
			v.NotScheduled, v.UnschedulableWhy = c.Reason, c.Message
			v.Unschedulable = c.Reason == corev1.PodReasonUnschedulable
		case c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue:
			v.Evicted = c.Reason == "EvictionByEvictionAPI"
		}
	}
}

// nominatedByUs reports whether the manager was the last to write the nominated node of a pod,
// given the managed fields of the pod. A scheduler becomes the owner of the field if it nominates
// another node, or if it nominates this node after our nomination was removed.
func nominatedByUs(fields []metav1.ManagedFieldsEntry) bool {
	return slices.ContainsFunc(fields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == wellknown.ManagerName && f.Subresource == "status" && f.FieldsV1 != nil &&
			bytes.Contains(f.FieldsV1.GetRawBytes(), []byte(`"f:nominatedNodeName"`))
	})
}

// identity returns the fields of an object's metadata that identify the object, and its creation
// and deletion time.
func identity(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: intern(m.Namespace), Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// intern returns a string equal to s. Equal strings that intern returns share their memory, which
// saves memory where thousands of objects have the same value.
func intern(s string) string { return unique.Make(s).Value() }

// trimNode removes from a Node all fields that do not decide whether a pod may run there. It is a
// transform of the manager's cache.
func trimNode(object any) (any, error) {
	n, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	trimmed := &corev1.Node{ObjectMeta: identity(&n.ObjectMeta)}
	trimmed.Labels = n.Labels
	trimmed.Spec = corev1.NodeSpec{Taints: n.Spec.Taints, Unschedulable: n.Spec.Unschedulable}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status,
				LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return trimmed, nil
}

// trimNamespace removes from a Namespace all labels except the one that sets the pin mode of its
// pods. It is a transform of the manager's cache.
func trimNamespace(object any) (any, error) {
	ns, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	mode, said := ns.Labels[wellknown.AnnotationPin]
	ns.ObjectMeta = identity(&ns.ObjectMeta)
	if said {
		ns.Labels = map[string]string{wellknown.AnnotationPin: mode}
	}
	return ns, nil
}

// rememberFor returns how long the manager remembers a pod that has ended: as long as the pod's
// window, because the addresses are not held longer, and at most maxMemory.
func rememberFor(window lease.Window) time.Duration {
	return min(time.Duration(window), maxMemory)
}
