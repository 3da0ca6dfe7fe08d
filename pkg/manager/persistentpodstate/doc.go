// Package persistentpodstate implements PersistentPodState: the recreated pods of a StatefulSet
// return to nodes with the same labels as their former ones.
//
// Decisions are pure functions: computeStatus (what to record), Inject (how a new pod is modified),
// generate (what a workload's annotations ask for), Normalize (in the API package) and validate.
// The other parts call them:
//
//	clusterView  informers and the history of pods and nodes; enqueues what has to be reconciled
//	             (all replicas)
//	recorder     the status of PersistentPodStates, and pods that wait for a node that is gone
//	             (leader)
//	generator    PersistentPodStates from the annotations of workloads (leader)
//	installer    the CRD and the webhook configurations, unless Kruise serves them itself (leader)
//	hooks        the webhooks (all replicas)
//
// The manager's program refers to it in one line, and nothing else does.
package persistentpodstate
