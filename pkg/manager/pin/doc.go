// Package pin brings pods back to the nodes that have their addresses (docs/design.md, "The pin").
//
// When a pod is created, the webhook collects [podFacts]: the node that has the pod's addresses, or
// where the last pod with its name was seen; the mode and the patience; whether earlier pods got
// there. [decide], a pure function, decides whether and how the pod is pinned, and [apply] writes
// the decision into the pod's node affinity and annotations. The webhook writes nothing else, and
// admits what it cannot decide.
//
// A pod that waits too long for the node that it requires is deleted by the [patienceReconciler],
// because its affinity cannot be changed. Its controller creates another pod, whose node is only
// preferred.
//
// Each replica of the manager decides by what its own watches have shown (cluster): pods and
// reservations, nodes and namespaces, the last instance of each pod, and strikes.
package pin
