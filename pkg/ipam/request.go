package ipam

import (
	"net/netip"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// Pod is what K8S_POD_* say of the caller. All three are empty for a caller
// that is no kubelet; then there is no key and no retention.
type Pod struct {
	Namespace string
	Name      string
	UID       string
}

// Request is one ADD or CHECK, parsed and checked: nothing behind it sees
// JSON, CNI_ARGS or the environment.
type Request struct {
	Pool        lease.Pool
	ContainerID string
	IfName      string
	NetnsPath   string
	Pod         Pod

	Sets      []pool.Set     // at least one, disjoint, one address of each
	Requested []netip.Addr   // each lies in one of Sets
	Retention policy.Request // what the pod's annotations say of retention
	Options   policy.Config  // the policies of the ipam section

	Prev      []netip.Addr // CHECK: the addresses of prevResult
	PrevKnown bool         // CHECK: prevResult was there
}

// Assigned is one address of a Result.
type Assigned struct {
	Address netip.Prefix // the address with its subnet's length
	Gateway netip.Addr
	Kept    bool // it came out of a hold or a take-over
}

// Result is what an ADD hands out: one address for each set, in their order.
type Result struct {
	Addresses []Assigned
	Existing  bool     // the container had them all already
	Notes     []string // what an operator should know; one line each, for stderr
}

// kept are the addresses that somebody knew before.
func (r Result) kept() []netip.Addr {
	var out []netip.Addr
	for _, a := range r.Addresses {
		if a.Kept {
			out = append(out, a.Address.Addr())
		}
	}
	return out
}

// PoolHint is what a DEL's configuration says of its pool, as far as it can be
// read: a DEL may come with any configuration. All of it may be zero.
type PoolHint struct {
	Pool    lease.Pool
	Sets    []pool.Set
	Options *policy.Config // nil where they cannot be read
}

func (r Request) scope() transact.Scope {
	return transact.Scope{Pool: r.Pool, Sets: r.Sets, Soft: r.Options.SoftHold, Mirror: r.Options.Mirror,
		Caches: r.Options.CNICacheDirs}
}

func (h PoolHint) scope() transact.Scope {
	s := transact.Existing(h.Pool, h.Sets)
	if o := h.Options; o != nil {
		s.Soft, s.Mirror, s.Caches = o.SoftHold, o.Mirror && s.Mirror, o.CNICacheDirs
	}
	return s
}
