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

// A reservation has the fields of an IPReservation that the pin needs. The informers keep such
// views and not the objects: with 50,000 of each they are most of the manager's memory.
type reservation struct {
	metav1.ObjectMeta // namespace, name, UID, resource version

	Pod, Node, NodeUID string
	ID, PodUID         string
	Bound              bool
	Addresses          string       // joined by commas
	Until              time.Time    // of a hold; zero: it has no end
	Window             lease.Window // 0 if it is not known
	Releasing          bool         // a user has asked to release the addresses
	Abandoned          bool         // no pod is pinned to it again
}

func viewReservation(r *ipam.IPReservation) *reservation {
	v := &reservation{
		ObjectMeta: identity(&r.ObjectMeta),
		Pod:        r.Spec.PodName,
		Node:       intern(r.Spec.NodeName),
		NodeUID:    intern(r.Spec.NodeUID),
		ID:         r.Status.ID,
		PodUID:     r.Status.PodUID,
		Bound:      r.Status.State == ipam.Bound,
		Addresses:  addressList(r.Status),
		Releasing:  r.Spec.Release != "" && r.Spec.Release == r.Status.ID,
		Abandoned:  r.Status.ID != "" && r.Annotations[wellknown.AnnotationPinAbandoned] == r.Status.ID,
	}
	if r.Status.HeldUntil != nil {
		v.Until = r.Status.HeldUntil.Time
	}
	v.Window, _ = policy.ParseWindow(r.Status.Window)
	return v
}

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

	Node       string // "" until it is bound
	BoundAt    time.Time
	Controlled bool // a controller recreates it
	Window     lease.Window

	Gated  bool   // our gate is on it
	Gates  int    // all gates
	Pinned string // "" if the pod is not retained: the webhook has not seen what its annotations say
	Reason string // of the pin, as in the annotation
	// Required: the pod can run on the pinned node only, by an affinity that the webhook added.
	Required    bool
	Tolerations []corev1.Toleration // with Required
	Nominated   string
	// NominatedByUs reports whether the manager wrote Nominated last, according to the field
	// owners.
	NominatedByUs bool
	NeverPreempts bool // by its preemption policy

	// NotScheduled is the reason of a scheduler that has tried the pod and did not place it; "" as
	// long as none has tried it, also where gates held it back.
	NotScheduled     string
	Unschedulable    bool // NotScheduled is Unschedulable
	UnschedulableWhy string
	Evicted          bool // by the eviction API
	Failed, Started  bool // phase Failed; its sandbox has had addresses
	Addresses        string
}

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

		Failed:  p.Status.Phase == corev1.PodFailed,
		Started: len(p.Status.PodIPs) > 0,
	}
	v.Window, _ = policy.ParseWindow(p.Annotations[policy.Annotation])
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

// nominatedByUs reports whether the manager is the last that wrote a pod's nominated node. A
// scheduler that nominates another node, or this one after ours was removed, becomes the owner of
// the field.
func nominatedByUs(fields []metav1.ManagedFieldsEntry) bool {
	return slices.ContainsFunc(fields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == wellknown.ManagerName && f.Subresource == "status" && f.FieldsV1 != nil &&
			bytes.Contains(f.FieldsV1.Raw, []byte(`"f:nominatedNodeName"`))
	})
}

// identity returns the part of an object's metadata that identifies it.
func identity(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: intern(m.Namespace), Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// intern returns one copy of a text that thousands of objects have.
func intern(s string) string { return unique.Make(s).Value() }

// trimNode removes from a Node what does not decide whether a pod may run there.
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

// trimNamespace removes all labels but the one that sets the mode of the pods.
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

// rememberFor returns how long a pod that has ended is remembered: no longer than its addresses are
// held for the next.
func rememberFor(window lease.Window) time.Duration {
	return min(time.Duration(window), maxMemory)
}
