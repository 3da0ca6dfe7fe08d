// Package persistentpodstate serves PersistentPodState, an API kind of OpenKruise ("Kruise"). A
// PersistentPodState names a StatefulSet, or a workload of a similar kind, as its target. When a
// pod of the target is recreated, the new pod is restricted to nodes that have the same values of
// given labels as the node of its predecessor, and gets the same values of given annotations.
//
// The decisions are pure functions: computeStatus (which states of pods to record), inject (how to
// modify a new pod), generate (whether the annotations of a workload require a PersistentPodState),
// Normalize (in the API package) and validate. The other parts call them:
//
//	clusterView  informers, and the history of pods and nodes (all replicas)
//	hooks        the webhooks (all replicas)
//	role         whether leasehold or Kruise serves PersistentPodStates (all replicas)
//	reconciler   creates PersistentPodStates from the annotations of workloads, writes their status,
//	             and deletes pods that wait for a node that is gone (leader)
//
// The CRD and the webhook configurations are in the manifests. The manager's main package calls
// this package in one line. No other package imports it, except for tests.
package persistentpodstate
