package persistentpodstate

const (
	// annotationRequired lists the node labels that a PersistentPodState added to the node selector
	// of the pod, as key=value, separated by commas.
	annotationRequired = "leasehold.dev/topology-required"
	// annotationReason explains to users which part of a PersistentPodState was not applied to the
	// pod, and why.
	annotationReason = "leasehold.dev/topology-reason"

	// annotationPatience is how long a pod waits for a node that is not ready and whose hostname a
	// PersistentPodState requires, in the forms of leasehold.dev/pin-patience; forever if not set.
	annotationPatience = "leasehold.dev/topology-patience"

	// labelGenerated marks the PersistentPodStates that the manager created, because the
	// annotations of a workload ask for them.
	labelGenerated = "leasehold.dev/generated"
	// generatedValue is the value of labelGenerated.
	generatedValue = "true"
)
