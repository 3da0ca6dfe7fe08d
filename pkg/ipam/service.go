package ipam

import "github.com/leasehold-cni/leasehold/pkg/transact"

// Service does everything that is done to the leases of a node.
type Service struct{ Node *transact.Node }
