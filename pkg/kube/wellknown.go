// Package kube has what agent and manager share of Kubernetes: clients, informer, names, ordinals,
// limits. The names are those of annotations and labels that leasehold sets on objects of other
// projects, and of its own objects. The ordinals say which pods a workload with numbered pods has.
// The annotation that asks for a retention window is in pkg/policy; the labels of an IPReservation
// are in its API package.
package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const (
	// AnnotationPin chooses the mode of a pod's pin: require, prefer or none. A namespace sets the
	// default for its pods with a label of the same key.
	AnnotationPin = "leasehold.dev/pin"
	// AnnotationPinPatience is how long a pinned pod waits for its node before it is replaced: a
	// duration such as 5s, or forever. A namespace sets the default for its pods with a label of
	// the same key.
	AnnotationPinPatience = "leasehold.dev/pin-patience"
	// AnnotationPinnedNode is the name of the node that a pod was pinned to at admission.
	AnnotationPinnedNode = "leasehold.dev/pinned-node"
	// AnnotationPinReason explains to users why a pod is or is not pinned.
	AnnotationPinReason = "leasehold.dev/pin-reason"

	// LabelRetained marks the pods that ask for retention, so that a watch can select them.
	LabelRetained = "leasehold.dev/retained"
	// Retained is the value of LabelRetained.
	Retained = "true"
)

const (
	// Namespace is the namespace of leasehold's own pods.
	Namespace = "leasehold-system"
	// ManagerName is the name of the manager's Deployment, service account, Secret, leader election
	// and webhook configuration.
	ManagerName = "leasehold-manager"
	// AgentName is the name of the agent's DaemonSet and service account.
	AgentName = "leasehold-agent"
)

// IsReady reports whether a pod's Ready condition is true.
func IsReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
