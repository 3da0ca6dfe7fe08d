// Package meta is the words that this project writes on other people's Kubernetes objects (NAMES, Kubernetes). The
// annotation that asks for a window is in pkg/policy, and the labels of an IPReservation are beside its type.
package meta

const (
	// AnnotationPin chooses the mode of a pod's pin; on a namespace it is a label of that name (policy.PinMode).
	AnnotationPin = "leasehold.dev/pin"
	// AnnotationPinnedNode is the node that a pod was pinned to at its admission.
	AnnotationPinnedNode = "leasehold.dev/pinned-node"
	// AnnotationPinReason says for people why a pod is or is not pinned.
	AnnotationPinReason = "leasehold.dev/pin-reason"
	// AnnotationExpectedAddresses are the addresses that wait for a pod on its pinned node, joined by commas.
	AnnotationExpectedAddresses = "leasehold.dev/expected-addresses"

	// AnnotationTopologyRequired are the node labels that a PersistentPodState has put into a pod's node selector, as
	// key=value, joined by commas.
	AnnotationTopologyRequired = "leasehold.dev/topology-required"
	// AnnotationTopologyReason says for people what of a PersistentPodState did not bind a pod, and why.
	AnnotationTopologyReason = "leasehold.dev/topology-reason"

	// AnnotationReleased on an IPReservation is the lease id (status.id) that nobody is pinned to again, because a
	// pod waited for it in vain.
	AnnotationReleased = "leasehold.dev/released"

	// LabelRetained marks the pods whose addresses are kept, so that they can be watched without all others.
	LabelRetained = "leasehold.dev/retained"
	// Retained is its value.
	Retained = "true"

	// LabelGenerated marks the PersistentPodStates that were made for a workload's annotations.
	LabelGenerated = "leasehold.dev/generated"
	// Generated is its value.
	Generated = "true"

	// GateNominate holds a pod back until its node is nominated.
	GateNominate = "leasehold.dev/nominate"
)

const (
	// Namespace is where leasehold's own pods run.
	Namespace = "leasehold-system"
	// ManagerName is the name of the manager's Deployment, service account, Secret, leader election and webhook
	// configuration.
	ManagerName = "leasehold-manager"
)
