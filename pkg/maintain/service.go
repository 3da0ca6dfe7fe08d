package maintain

import "github.com/leasehold-cni/leasehold/pkg/transact"

// Service looks after the leases of a node.
type Service struct{ *transact.Node }
