// Package maintain has what the agent and operators do to leases: survey, plan, act.
//
// Survey reads the store and the state of the leases' holders, Plan decides which actions are due,
// and Act performs them (docs/design.md, "Survey, plan, act"). The agent repeats these three steps,
// `leasectl gc` performs them once. The agent also applies to the leases what the API server shows
// of the node's pods (Follow, NamePods, Defer, RevokePods, EndHolds), and reads the leases and the
// journal to publish them (List, Journal). leasectl uses Reserve, Revoke, Preview, Import, Export,
// Loss and AcceptLoss.
//
// A program that changes leases because of what it sees of the host must prove that it sees the
// processes and mounts of the node, its view (docs/design.md, "The process view").
package maintain

import "github.com/leasehold-cni/leasehold/pkg/operation"

// Service does what the agent and operators do to the leases of a node.
type Service struct{ Node *operation.Node }
