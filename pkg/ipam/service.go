package ipam

import "github.com/leasehold-cni/leasehold/pkg/operation"

// Service performs the CNI verbs on a node.
type Service struct{ Node *operation.Node }
