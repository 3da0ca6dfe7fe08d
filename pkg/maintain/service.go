package maintain

import "github.com/leasehold-cni/leasehold/pkg/transact"

// Service maintains the leases of a node.
type Service struct{ Node *transact.Node }
