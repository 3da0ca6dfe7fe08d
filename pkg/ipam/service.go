package ipam

import "github.com/leasehold-cni/leasehold/pkg/transact"

// Service performs the CNI verbs on a node.
type Service struct{ Node *transact.Node }
