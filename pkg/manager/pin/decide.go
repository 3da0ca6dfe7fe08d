package pin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// A pinReason is why a pod is pinned or not, as one word for annotations and metrics.
type pinReason string

// The reasons for which a pod is pinned.
const (
	reserved   pinReason = "Reserved"   // a node has published its addresses
	remembered pinReason = "Remembered" // the last pod ran on the node a moment ago
)

// The reasons for which a pod is not pinned.
const (
	notWanted     pinReason = "NotWanted"     // the mode is none
	noReservation pinReason = "NoReservation" // no address is reserved for the pod
	unknown       pinReason = "Unknown"       // the reservation could not be looked up
	evicted       pinReason = "Evicted"       // the last pod was evicted from the node by the eviction API
	failedStarts  pinReason = "FailedStarts"  // the last pods did not start on the node
	nodeGone      pinReason = "NodeGone"      // the node does not exist any more
	nodeExcluded  pinReason = "NodeExcluded"  // the pod's own selectors exclude the node
	nodeNotReady  pinReason = "NodeNotReady"  // the node is not ready
	nodeCordoned  pinReason = "NodeCordoned"  // the node is cordoned
	nodeTainted   pinReason = "NodeTainted"   // the pod does not tolerate a taint of the node
)

// A wish is the pin that applies to a pod, according to its annotations, else the labels of its
// namespace, else the default of the cluster.
type wish struct {
	Mode     policy.PinMode
	Patience lease.Window
	IsSet    bool   // the pod or its namespace sets the patience
	Note     string // describes invalid values, which are ignored
}

// podFacts are the input of a decision.
type podFacts struct {
	Pod       *corev1.Pod // without what the webhook adds
	Wish      wish
	Scheduled bool // by a scheduler that is known to respect node affinity
	Recreated bool // a controller creates the pod again at once if it is deleted

	Known  bool         // the following could be looked up
	Target pinTarget    // the node that has the pod's addresses
	Node   *corev1.Node // the node of the target; nil if it does not exist
	// Unconfirmed says since when no agent confirms the reservations of the node, and why.
	Unconfirmed string
}

// A decision is whether and how a pod is pinned.
type decision struct {
	Mode     policy.PinMode // PinNone if the pod is not pinned
	Node     string         // the target, even if the pod is not pinned to it; "" if there is none
	Expected string         // the addresses that the node has for the pod
	Taken    bool           // as many pods were sent to the node as it has addresses
	Reason   pinReason
	Text     string // explains the decision to users
}

// Pinned reports whether the pod is pinned.
func (v decision) Pinned() bool { return v.Mode != policy.PinNone }

// String returns the value of the annotation leasehold.dev/pin-reason: the reason, and a text that
// begins with the mode if the pod is pinned.
func (v decision) String() string { return string(v.Reason) + ": " + v.Text }

// notRequired separates, in the text of a decision, the reason for which a pod is only preferred on
// a node although the mode is require.
const notRequired = "; not required: "

// decide decides whether and how a pod is pinned. It is a pure function.
func decide(f podFacts) decision {
	v := decision{Mode: policy.PinNone, Node: f.Target.Node, Expected: f.Target.Expected, Taken: f.Target.Taken}
	mode, why := effectiveMode(f)
	if v.Reason, v.Text = blocker(f, mode); v.Reason == "" {
		v.Mode, v.Reason = mode, reserved
		v.Text = fmt.Sprintf("%s %s, which has %s", mode, v.Node, cmp.Or(f.Target.Addresses, "its address"))
		if f.Target.Remembered {
			v.Reason, v.Text = remembered, fmt.Sprintf("%s %s, where it ran a moment ago", mode, v.Node)
		}
		if f.Unconfirmed != "" {
			v.Text += "; no agent confirms that since " + f.Unconfirmed
		}
		if _, waits := unschedulable(f.Node, f.Pod.Spec.Tolerations); waits != "" {
			v.Text += "; it waits: " + waits
		}
		if why != "" {
			v.Text += notRequired + why
		}
	}
	if f.Wish.Note != "" {
		v.Text += "; " + f.Wish.Note
	}
	return v
}

// effectiveMode returns the mode in which a pod is pinned that may be pinned. It is prefer instead
// of require, with the reason why, if the pod might wait without an end, or might not be created
// again when it is replaced. A pod whose patience is forever is never replaced.
func effectiveMode(f podFacts) (mode policy.PinMode, why string) {
	forever := f.Wish.Patience == lease.Forever
	switch {
	case f.Wish.Mode != policy.PinRequire:
		return f.Wish.Mode, ""
	case !f.Scheduled:
		why = fmt.Sprintf("the scheduler %q is not among --schedulers", f.Pod.Spec.SchedulerName)
	case len(f.Pod.Spec.SchedulingGates) > 0:
		why = "it has scheduling gates"
	case isGrouped(f.Pod):
		why = "it is scheduled as one of a group"
	case !f.Recreated && !forever:
		why = "no controller of --pin-kinds would create it again"
	case f.Target.HasStrike && !forever:
		why = "an earlier pod did not get onto " + f.Target.Node
	default:
		return policy.PinRequire, ""
	}
	return policy.PinPrefer, why
}

// groupLabels are set on pods that some schedulers only place together with others.
var groupLabels = []string{"scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io",
	"pod-group.scheduling.sigs.k8s.io/name", "kueue.x-k8s.io/pod-group-name"}

// isGrouped reports whether a pod is scheduled only together with others.
func isGrouped(p *corev1.Pod) bool {
	return p.Spec.SchedulingGroup != nil || slices.ContainsFunc(groupLabels, func(key string) bool {
		_, found := p.Labels[key]
		return found
	})
}

// blocker returns the reason if a pod may not be pinned in a mode, otherwise "". It has one case
// for each reason, in the order of their precedence.
func blocker(f podFacts, mode policy.PinMode) (pinReason, string) {
	node, last := f.Target.Node, f.Target.Last
	switch {
	case mode == policy.PinNone:
		return notWanted, "the pin mode is none"
	case !f.Known:
		return unknown, "its address could not be looked up"
	case f.Target.Node == "":
		return noReservation, "no address waits for it"
	case f.Node == nil:
		return nodeGone, node + " is gone"
	case last.Node == node && last.Evicted && !f.Node.Spec.Unschedulable:
		return evicted, "it was evicted from " + node
	case last.Node == node && last.Failures >= maxFailures:
		return failedStarts, fmt.Sprintf("it has failed to start on %s %d times", node, last.Failures)
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(f.Pod).Match(f.Node); err != nil || !fits {
		return nodeExcluded, "the pod's own node selectors exclude " + node
	}
	if mode == policy.PinRequire && f.Wish.IsSet {
		return "", "" // the pod waits as long as its user says
	}
	return unschedulable(f.Node, f.Pod.Spec.Tolerations)
}

// unschedulable returns the reason, and a text, if a node does not accept a pod with these
// tolerations now, otherwise "".
func unschedulable(n *corev1.Node, tolerations []corev1.Toleration) (pinReason, string) {
	if control.Ready(n).Status != corev1.ConditionTrue {
		return nodeNotReady, n.Name + " is not Ready"
	}
	if n.Spec.Unschedulable {
		cordon := []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		if _, found := untoleratedTaint(cordon, tolerations); found {
			return nodeCordoned, n.Name + " is cordoned"
		}
	}
	if taint, found := untoleratedTaint(n.Spec.Taints, tolerations); found {
		return nodeTainted, fmt.Sprintf("%s has the taint %s", n.Name, taint.ToString())
	}
	return "", ""
}

func untoleratedTaint(taints []corev1.Taint, tolerations []corev1.Toleration) (corev1.Taint, bool) {
	hard := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	return schedulingcorev1.FindMatchingUntoleratedTaint(logr.Discard(), taints, tolerations, hard, true)
}

// wishOf returns the pin that applies to a pod, given its annotations, the labels of its namespace
// and the default mode of the cluster.
func wishOf(pod, namespace map[string]string, cluster policy.PinMode) wish {
	var notes []string
	w := wish{Mode: cluster}
	for _, from := range []struct {
		values map[string]string
		prefix string
	}{{namespace, "the namespace's "}, {pod, ""}} {
		if value, found := from.values[kube.AnnotationPin]; found {
			if mode, err := policy.ParsePinMode(value); err != nil {
				notes = append(notes, from.prefix+err.Error())
			} else {
				w.Mode = mode
			}
		}
	}
	var err error
	if w.Patience, w.IsSet, err = patienceOf(pod, namespace[kube.AnnotationPinPatience]); err != nil {
		notes = append(notes, err.Error())
	}
	w.Note = strings.Join(notes, "; ")
	return w
}

// patienceOf returns how long a pod waits for its node, given its annotations and the label of its
// namespace. isSet reports whether one of them says it. An invalid value is ignored, and returned
// as an error.
func patienceOf(pod map[string]string, namespace string) (d lease.Window, isSet bool, err error) {
	for _, value := range []string{pod[kube.AnnotationPinPatience], namespace} {
		if value == "" {
			continue
		}
		if d, err = policy.ParsePatience(value); err == nil {
			return d, true, nil
		}
	}
	return policy.DefaultPatience, false, err
}
