package persistentpodstate

const (
	// annotationRequired lists the node labels that a PersistentPodState added to a pod's
	// node selector, as key=value, separated by commas.
	annotationRequired = "leasehold.dev/topology-required"
	// annotationReason explains to users which part of a PersistentPodState was not applied
	// to a pod, and why.
	annotationReason = "leasehold.dev/topology-reason"

	// labelGenerated marks the PersistentPodStates that were generated from a workload's
	// annotations.
	labelGenerated = "leasehold.dev/generated"
	// generatedValue is the value of labelGenerated.
	generatedValue = "true"
)
