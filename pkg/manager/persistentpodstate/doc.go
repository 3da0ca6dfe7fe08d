// Package persistentpodstate implements the API kind PersistentPodState of OpenKruise ("Kruise"). A
// PersistentPodState names a StatefulSet, or a workload of a similar kind, as its target. When a
// pod of the target is recreated, the new pod is restricted to nodes that have the same values of
// given labels as the node of its predecessor, and gets the same values of given annotations.
//
// The decisions are pure functions: computeStatus (which states of pods to record), Inject (how to
// modify a new pod), generate (whether the annotations of a workload require a PersistentPodState),
// Normalize (in the API package) and validate. The other parts call them:
//
//	clusterView  informers, and the history of pods and nodes; enqueues what has to be reconciled
//	             (all replicas)
//	recorder     writes the status of PersistentPodStates, and deletes pods that wait for a node
//	             that is gone (leader)
//	generator    creates PersistentPodStates from the annotations of workloads (leader)
//	installer    creates the CRD and fills the webhook configurations, unless Kruise serves
//	             PersistentPodStates itself (leader)
//	hooks        the webhooks (all replicas)
//
// The manager's main package calls this package in one line. No other package imports it, except
// for tests.
package persistentpodstate
