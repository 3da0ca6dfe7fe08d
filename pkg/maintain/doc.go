// Package maintain maintains the leases of a node: what the agent does periodically, and what an
// operator does by hand.
//
// Survey examines the node, Plan decides which actions are due, and Act performs them. The agent
// also applies what it knows of the node's pods (Follow, Defer, RevokePods, EndHolds), and
// publishes the leases (List, Journal). Operators use Revoke, Preview, Import, Export, Loss and
// AcceptLoss.
package maintain
