package ipam

import (
	"net/netip"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// Service performs the CNI verbs on a node.
type Service struct{ Node *operation.Node }

// Pod has the values of K8S_POD_* in CNI_ARGS. All three are empty if the caller is not Kubernetes;
// then the leases have no key and are not retained.
type Pod struct {
	Namespace string
	Name      string
	UID       string
}

// Request is one ADD or CHECK, parsed and validated.
type Request struct {
	Pool        lease.Pool
	ContainerID string
	IfName      string
	NetnsPath   string
	Pod         Pod

	Sets      []pool.Set     // at least one, disjoint; the container gets one address of each
	Link      string         // see store.Tx.SetLink
	Requested []netip.Addr   // each is in one of Sets
	Retention policy.Request // of the pod's annotations
	Options   policy.Config  // the policies of the ipam section

	Prev []netip.Addr // CHECK: the addresses of prevResult
}

// Assigned is one address of a Result.
type Assigned struct {
	Address netip.Prefix // the address with its subnet's length
	Gateway netip.Addr
}

// Result is the result of an ADD: one address of each range set, in their order.
type Result struct {
	Addresses []Assigned
	Existing  bool     // the container had an address before
	Notes     []string // for operators, on stderr, one line each
}

func (r Request) scope() operation.Scope {
	return operation.Scope{Pool: r.Pool, Sets: r.Sets, CoolDown: r.Options.CoolDown,
		Caches: r.Options.CNICacheDirs}
}
