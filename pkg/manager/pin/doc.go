// Package pin brings a recreated pod back to the node that has its addresses (docs/design.md, "The
// pin").
//
// When a pod is created, the webhook collects [podFacts]: the newest reservation of that name, or
// where the pod was seen last; the node; the mode. [decide], a pure function, decides whether and
// how the pod is pinned, and the webhook writes the decision into the pod's annotations. Everything
// else follows from the pod, in any replica and after any restart:
//
//   - nominate: the webhook adds a gate. The nominator of the replica that admitted the pod, or a
//     little later that of any other, writes status.nominatedNodeName and lifts the gate. The
//     scheduler takes the node if the pod fits there, without comparing scores. A nomination that
//     has no effect is withdrawn.
//   - require: the webhook narrows the pod's node affinity. The evictor evicts the pod if its node
//     does not take it within a time limit, and marks the reservation, so that the next pod runs
//     elsewhere.
//   - prefer: the webhook adds a preferred node affinity.
//
// A gate is the scheduling gate leasehold.dev/nominate, which keeps a scheduler from trying the pod
// before the nomination is written. The webhook makes (adds) gates, the nominator lifts (removes)
// them. A gate fails if it could not be lifted, and is late if that took longer than gateTimeout.
//
// No pod waits for the manager for long: the webhook admits what it cannot decide, any replica
// lifts a gate that was not lifted in time, and the [gateLimiter] permits no gate while others fail
// or are late.
package pin
