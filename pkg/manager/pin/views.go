package pin

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// A podView has the fields of a retained pod that the pin needs.
type podView struct {
	metav1.ObjectMeta // namespace, name, UID, resource version, creation and deletion time

	Node      string // "" until the pod is bound
	BoundAt   time.Time
	Recreated bool // the pod has a controller that creates another one at once if it is deleted
	Window    lease.Window
	For       string // the reservation name; "" if the pod's addresses are for pods of the same name
	Workload  string // what created the pod, if it has a reservation name (workloadOf)

	Sent     string       // the node that the pod was pinned to, in the mode require or prefer, as annotated
	Pinned   string       // the only node where the pod may run, because of the pin; "" if there is none
	Patience lease.Window // how long the pod waits for that node
	Reason   string       // of the decision, as in the annotation of the pod; "" once the pod is on that node

	Nominated     bool   // a scheduler has nominated a node
	Unschedulable bool   // a scheduler has tried the pod without success
	Message       string // of that scheduler
	Evicted       bool   // through the eviction API
	Rejected      bool   // by the kubelet, because of the pod's node affinity
	// Failed and Succeeded are the phase of the pod. Started reports whether the pod has addresses,
	// so that its sandbox was created.
	Failed, Succeeded, Started bool
	SentIndex                  uint16 // of the list of pods that were sent to nodes (sentIndex)
	Addresses                  string
}

// viewPod returns the podView of a pod. kinds are the controllers of --pin-kinds.
func viewPod(p *corev1.Pod, kinds []schema.GroupKind) *podView {
	v := &podView{
		ObjectMeta: control.Identity(&p.ObjectMeta),
		Node:       control.Intern(p.Spec.NodeName),
		Recreated:  recreated(p, kinds),
		Nominated:  p.Status.NominatedNodeName != "",
		Rejected:   p.Status.Phase == corev1.PodFailed && p.Status.Reason == "NodeAffinity",
		Failed:     p.Status.Phase == corev1.PodFailed,
		Succeeded:  p.Status.Phase == corev1.PodSucceeded,
		Started:    len(p.Status.PodIPs) > 0,
	}
	v.Window, _ = policy.ParseWindow(p.Annotations[policy.Annotation])
	if v.For = control.Intern(reservationName(p)); v.For != "" {
		v.Workload, v.SentIndex = control.Intern(workloadOf(p)), sentIndex(p.Namespace, p)
	}
	var ips []string
	for _, ip := range p.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	v.Addresses = strings.Join(ips, ",")
	v.Sent = control.Intern(kube.Short(p.Annotations[kube.AnnotationPinnedNode], kube.MaxName))
	if v.Window != 0 && isRequired(p, v.Sent) {
		v.Pinned = v.Sent
	}
	if v.Node == "" || v.Node != v.Sent {
		v.Reason = control.Intern(kube.Cut(p.Annotations[kube.AnnotationPinReason], kube.MaxNote))
	}
	if v.Node == "" {
		v.Patience, _, _ = patienceOf(p.Annotations, "")
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
		case c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable:
			v.Unschedulable, v.Message = true, control.Intern(kube.Cut(c.Message, kube.MaxNote))
		case c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue:
			v.Evicted = c.Reason == "EvictionByEvictionAPI"
		}
	}
}

// keyOn identifies what is remembered of a pod on a node for its successors: by its name, or by its
// reservation name and the node.
func (p *podView) keyOn(node string) string {
	if p.For == "" {
		return keyOf(p)
	}
	return control.NodeKey(control.NameKey(p.Namespace, p.For), node)
}

// place returns the node on which a pod counts: that to which it is bound, else that to which it
// was sent; "" if there is none.
func (p *podView) place() string { return cmp.Or(p.Node, p.Sent) }

// isAlive reports whether a pod runs or will run.
func (p *podView) isAlive() bool { return p.DeletionTimestamp == nil && !p.Failed && !p.Succeeded }

// awaitsNode reports whether a pod waits for the node that it is pinned to, which a scheduler has
// tried without success.
func (p *podView) awaitsNode() bool {
	return p.Pinned != "" && p.Node == "" && p.Unschedulable
}

// isMisplaced reports whether a pod did not run on the node that it is pinned to.
func (p *podView) isMisplaced() bool {
	return p.Pinned != "" && (p.Node != "" && p.Node != p.Pinned || p.Rejected)
}
