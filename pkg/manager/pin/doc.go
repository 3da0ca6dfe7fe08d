// Package pin brings a recreated pod back to the node that has its addresses (docs/design.md, "The
// pin").
//
// At a pod's CREATE the webhook gathers [Facts] - the newest reservation of that name, or where the pod was seen last; the
// node; the mode - and [Decide], a pure function, says whether the pod is pinned and how. What it said stands in the pod's
// annotations. Everything else follows from what a pod looks like, in any replica and after any restart:
//
//   - nominate: the webhook adds a gate. The nominator of the replica that admitted the pod, or after a moment of any other,
//     writes status.nominatedNodeName and lifts the gate. The scheduler takes the node if the pod fits there, without
//     comparing scores. A nomination from which nothing comes is withdrawn.
//   - require: the webhook narrows the pod's node affinity. The valve evicts the pod if its node does not take it for a
//     while, and marks the reservation, so that the next pod runs elsewhere.
//   - prefer: the webhook adds a preferred node affinity.
//
// Nothing here keeps a pod from starting: the webhook admits whatever it cannot judge, a gate that was not lifted in time is
// lifted as soon as any manager sees it, and no gate is made while others wait too long.
package pin
