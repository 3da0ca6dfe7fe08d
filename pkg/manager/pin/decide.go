package pin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

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
	abandoned     pinReason = "Abandoned"     // an earlier pod waited for its node and was evicted
	evicted       pinReason = "Evicted"       // the last pod was evicted from the node by the eviction API
	failedStarts  pinReason = "FailedStarts"  // the last pods did not start on the node
	nodeGone      pinReason = "NodeGone"      // the node does not exist any more
	nodeExcluded  pinReason = "NodeExcluded"  // the pod's own selectors exclude the node
	nodeNotReady  pinReason = "NodeNotReady"  // the node is not ready
	nodeCordoned  pinReason = "NodeCordoned"  // the node is cordoned
	nodeTainted   pinReason = "NodeTainted"   // the pod does not tolerate a taint of the node
)

// podFacts are the input of a decision.
type podFacts struct {
	Pod      *corev1.Pod    // without what the webhook adds
	Mode     policy.PinMode // the mode that applies to the pod
	ModeNote string         // appended to the text of the decision
	Fallback policy.PinMode // replaces nominate if Honoured is false
	Honoured bool           // the pod's scheduler is known to honour nominations
	Crowded  bool           // too many pods with gates wait already
	Large    bool           // the API server might not let the manager lift the pod's gate

	Known  bool      // the following could be looked up
	Found  bool      // there is a target
	Target pinTarget // the node that has the pod's addresses
	Last   instance
	Node   *corev1.Node // the node of the target; nil if it does not exist
}

// A decision is whether and how a pod is pinned.
type decision struct {
	Mode      policy.PinMode // PinNone if the pod is not pinned
	Node      string         // the target, even if the pod is not pinned to it; "" if there is none
	Hostname  string         // the hostname label of the node
	Addresses string         // the addresses that the node has for the pod
	Reason    pinReason
	Text      string // explains the decision to users
}

// Pinned reports whether the pod is pinned.
func (v decision) Pinned() bool { return v.Mode != policy.PinNone }

// String returns the value of the annotation leasehold.dev/pin-reason: the reason, and a text that
// begins with the mode if the pod is pinned.
func (v decision) String() string { return string(v.Reason) + ": " + v.Text }

// modeIn returns the mode in a value of the annotation leasehold.dev/pin-reason, PinNone if the pod
// is not pinned.
func modeIn(annotation string) policy.PinMode {
	reason, text, _ := strings.Cut(annotation, ": ")
	if pinReason(reason) != reserved && pinReason(reason) != remembered {
		return policy.PinNone
	}
	word, _, _ := strings.Cut(text, " ")
	mode, err := policy.ParsePinMode(word)
	if err != nil {
		return policy.PinNone
	}
	return mode
}

// decide decides whether and how a pod is pinned. It is a pure function.
func decide(f podFacts) decision {
	v := decision{Mode: policy.PinNone, Node: f.Target.Node, Addresses: f.Target.Addresses}
	if v.Reason, v.Text = blocker(f); v.Reason == "" {
		v.Reason = reserved
		if f.Target.Remembered {
			v.Reason = remembered
		}
		v.Mode, v.Text = effectiveMode(f)
		if v.Mode == policy.PinNone {
			v.Reason = notWanted
		}
		v.Hostname = f.Node.Labels[corev1.LabelHostname]
	}
	if f.ModeNote != "" {
		v.Text += "; " + f.ModeNote
	}
	return v
}

// effectiveMode returns the mode in which a pod is pinned that may be pinned, and the text that
// explains it to users. The mode is f.Mode, unless nominate is not possible.
func effectiveMode(f podFacts) (policy.PinMode, string) {
	mode, instead := f.Mode, ""
	switch {
	case mode != policy.PinNominate:
	case !f.Honoured:
		mode, instead = f.Fallback, fmt.Sprintf("; not nominate: the scheduler %q is not among --schedulers",
			f.Pod.Spec.SchedulerName)
	case f.Large:
		mode, instead = policy.PinPrefer, "; not nominate: the pod is too large, or has too many annotations or gates"
	case f.Crowded:
		mode, instead = policy.PinPrefer, "; not nominate: too many pods wait for their nomination"
	}
	text := fmt.Sprintf("%s %s, which has ", mode, f.Target.Node)
	switch {
	case f.Target.Remembered:
		text = fmt.Sprintf("%s %s, where it ran a moment ago", mode, f.Target.Node)
	case f.Target.Addresses != "":
		text += f.Target.Addresses
	default:
		text += "its address"
	}
	if _, why := unschedulable(f.Node, f.Pod.Spec.Tolerations); why != "" {
		text += "; it waits: " + why
	}
	return mode, text + instead
}

// blocker returns the reason if a pod may not be pinned, otherwise "". It has one case for each
// reason, in the order of their precedence.
func blocker(f podFacts) (pinReason, string) {
	node := f.Target.Node
	switch {
	case f.Mode == policy.PinNone:
		return notWanted, "the pin mode is none"
	case !f.Known:
		return unknown, "its address could not be looked up"
	case !f.Found:
		return noReservation, "no address waits for it"
	case f.Target.Abandoned:
		return abandoned, "an earlier pod waited for " + node + " and was evicted"
	case f.Node == nil:
		return nodeGone, node + " is gone"
	case f.Target.NodeUID != "" && f.Target.NodeUID != string(f.Node.UID):
		return nodeGone, node + " is another one of that name"
	case f.Last.Node == node && f.Last.Evicted && !f.Node.Spec.Unschedulable:
		return evicted, "it was evicted from " + node
	case f.Last.Node == node && f.Last.Failures >= maxFailures:
		return failedStarts, fmt.Sprintf("it has failed to start on %s %d times", node, f.Last.Failures)
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(f.Pod).Match(f.Node); err != nil || !fits {
		return nodeExcluded, "the pod's own node selectors exclude " + node
	}
	if f.Mode == policy.PinRequire {
		return "", "" // the pod waits until the node takes it
	}
	return unschedulable(f.Node, f.Pod.Spec.Tolerations)
}

// unschedulable returns the reason, and a text, if a node does not accept a pod with these
// tolerations now, otherwise "".
func unschedulable(n *corev1.Node, tolerations []corev1.Toleration) (pinReason, string) {
	name := n.Name
	if !nodeReady(n) {
		return nodeNotReady, name + " is not Ready"
	}
	if n.Spec.Unschedulable {
		cordon := []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		if _, found := untoleratedTaint(cordon, tolerations); found {
			return nodeCordoned, name + " is cordoned"
		}
	}
	if taint, found := untoleratedTaint(n.Spec.Taints, tolerations); found {
		return nodeTainted, fmt.Sprintf("%s has the taint %s", name, taint.ToString())
	}
	return "", ""
}

func untoleratedTaint(taints []corev1.Taint, tolerations []corev1.Toleration) (corev1.Taint, bool) {
	hard := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	return schedulingcorev1.FindMatchingUntoleratedTaint(logr.Discard(), taints, tolerations, hard, true)
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
