// Package topology serves PersistentPodState: the recreated pods of a StatefulSet return to nodes with the labels that
// their old ones had (DESIGN 7; FIELD 5.2 are the faults of the original, P1 to P17).
//
// Decisions are pure functions: Status (what to record), Inject (what a new pod gets), Generate (what a workload's
// annotations ask for), Normalize (in the API's package) and validate. Around them:
//
//	View       informers and the memory of pods and nodes, in every replica; looks up, and rings for what has to be looked at again
//	recorder   a PersistentPodState's status, and pods that wait for a node that is gone; the leader
//	generator  a PersistentPodState for a workload's annotations; the leader
//	keeper     the CRD, the webhook configurations, and whether Kruise does all this itself; the leader
//	hooks      the webhooks, in every replica
package topology
