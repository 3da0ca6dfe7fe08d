// Package wellknown defines the annotations, labels and scheduling gates that leasehold sets on
// Kubernetes objects of other projects, and the names of its own objects. The annotation that asks
// for a retention window is in pkg/policy; the labels of an IPReservation are in its API package.
package wellknown

const (
	// AnnotationPin chooses the mode of a pod's pin: nominate, require, prefer or none. A namespace
	// sets the default for its pods with a label of the same key.
	AnnotationPin = "leasehold.dev/pin"
	// AnnotationPinnedNode is the name of the node that a pod was pinned to at admission.
	AnnotationPinnedNode = "leasehold.dev/pinned-node"
	// AnnotationPinReason explains to users why a pod is or is not pinned.
	AnnotationPinReason = "leasehold.dev/pin-reason"
	// AnnotationExpectedAddresses lists the addresses reserved for a pod on its pinned node,
	// separated by commas.
	AnnotationExpectedAddresses = "leasehold.dev/expected-addresses"

	// AnnotationPinAbandoned is set on an IPReservation. Its value is the id of the lease
	// (status.id) for which pods are no longer pinned, because a pod could not be scheduled to its
	// node in time.
	AnnotationPinAbandoned = "leasehold.dev/pin-abandoned"

	// LabelRetained marks the pods that ask for retention, so that a watch can select them.
	LabelRetained = "leasehold.dev/retained"
	// Retained is the value of LabelRetained.
	Retained = "true"

	// GateNominate is the scheduling gate of a pod until its node is nominated.
	GateNominate = "leasehold.dev/nominate"
)

const (
	// Namespace is the namespace of leasehold's own pods.
	Namespace = "leasehold-system"
	// ManagerName is the name of the manager's Deployment, service account, Secret, leader election
	// and webhook configuration.
	ManagerName = "leasehold-manager"
)
