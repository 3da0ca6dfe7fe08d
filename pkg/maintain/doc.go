// Package maintain looks after the leases of a node: what the agent does all the time, and what an
// operator does by hand.
//
// Survey looks at the node, Plan decides what is due, and Act does it. The other use cases are for
// those who know the node's pods (Follow, Defer, RevokePods, EndHolds), for those who publish the
// leases (List, Journal), and for operators (Revoke, Preview, Import, Export, Loss, AcceptLoss).
package maintain
