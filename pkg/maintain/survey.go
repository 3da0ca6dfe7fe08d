package maintain

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
)

// Survey is the state of a node: the content of its store, and whether the holders of its leases
// are alive.
type Survey struct {
	NodeView
	// Life has the state of the holder of each bound lease.
	Life map[lease.Holder]lease.Liveness
	// Last has, for each hold whose time is over, whether the last holder still has the address.
	Last map[Ref]lease.Liveness
	// WithoutFile are the bound leases whose file in host-local's directory is missing.
	WithoutFile []lease.Lease
	// imports are actions for the addresses that host-local has assigned to living containers and
	// that have no lease, or one of an unknown owner, in the pools that Survey was called with.
	// Only pool, address and holder of the leases are set.
	imports []Action
	// Unknown is the number of leases whose holders are neither proven alive nor dead. They stay
	// bound. WhyUnknown is the reason, or nil if there are none.
	Unknown    int
	WhyUnknown error
	// Unsafe is the reason if no action may follow from this survey, because it is not proven that
	// this process sees the host, otherwise nil.
	Unsafe error
}

// Served is a pool that leasehold serves according to the configuration of the runtime. The first
// address of a pool that is imported has the pool imported, if its range sets are known.
type Served struct {
	operation.Scope
	// Since is when the configuration and the binary became what they are. What host-local assigns
	// later shows that the runtime does not use them. It is not imported, because then the pod
	// would have a lease, and nothing would report that its address is not kept.
	Since time.Time
}

// Survey reads the store, and then the state of the holders from the host. It does not contain
// leases that were bound after the store was read.
//
// served are the pools that leasehold serves. host-local may have assigned addresses of these pools
// before.
func (s *Service) Survey(ctx context.Context, served ...Served) (Survey, error) {
	view, err := s.List(ctx, func(lease.Lease) bool { return true })
	v := Survey{NodeView: view, Life: map[lease.Holder]lease.Liveness{}, Last: map[Ref]lease.Liveness{}}
	if err != nil {
		return v, err
	}
	if err := s.prove(v.NodeView); err != nil {
		// Even the boot id may be another one, in a sandbox with a kernel of its own.
		if len(v.Leases)+len(v.Damaged) > 0 {
			v.Unsafe = fmt.Errorf("%w: %w", operation.ErrNoHostView, err)
		}
		return v, nil
	}
	s.examineHolders(&v)
	v.WithoutFile = hostlocal.Missing(slices.Collect(host.BoundIn(v.Leases)))
	v.checkSomeAlive()
	v.imports = s.imports(v, served)
	return v, nil
}

// prove returns an error if it is not proven that this process sees the processes and mounts of the
// host. v has all leases.
func (s *Service) prove(v NodeView) error {
	return s.Node.Host.ProveView(v.namespaces, v.Now.BootID, host.BoundIn(v.Leases))
}

// examineHolders sets Life, Last, Unknown and WhyUnknown. If the namespace of a single process
// cannot be read, no holder can be proven dead.
func (s *Service) examineHolders(v *Survey) {
	e := host.NewEvidence(s.Node.Host, v.Now.BootID, host.BoundIn(v.Leases))
	e.Twice = true
	for _, l := range v.Leases {
		switch {
		case l.State == lease.Bound:
			v.Life[l.Holder] = e.Prove(l)
		case l.Lapsed(v.Now):
			v.Last[RefTo(l)] = e.Last(l)
		}
	}
	if unknown := v.boundInBoot()[lease.Unknown]; len(unknown) > 0 {
		v.Unknown = len(unknown)
		v.WhyUnknown = fmt.Errorf("of %d leases it is unknown whether their sandboxes are gone: %w", v.Unknown,
			e.WhyUnknown(unknown[0]))
	}
}

// boundInBoot returns the bound leases of this boot that have a network namespace, by the state of
// their holders.
func (v Survey) boundInBoot() map[lease.Liveness][]lease.Lease {
	out := map[lease.Liveness][]lease.Lease{}
	for _, l := range v.Leases {
		if l.State == lease.Bound && l.Holder.BootID == v.Now.BootID && l.Holder.Netns.Ino != 0 {
			life := v.Life[l.Holder]
			out[life] = append(out[life], l)
		}
	}
	return out
}

// checkSomeAlive makes dead holders unknown if no lease that was bound in this boot has a living
// one. The reason may be that this process does not see the holders (docs/design.md, "The process
// view"), or that the node is drained and a DEL lost. Holds still end. A dead holder whose file is
// missing does not count: host-local has processed its DEL, which is another proof.
func (v *Survey) checkSomeAlive() {
	bound := v.boundInBoot()
	released := map[Ref]bool{}
	for _, l := range v.WithoutFile {
		released[RefTo(l)] = true
	}
	dead := slices.DeleteFunc(bound[lease.Dead], func(l lease.Lease) bool { return released[RefTo(l)] })
	if len(bound[lease.Alive]) > 0 || len(dead)+v.Unknown == 0 {
		return
	}
	for _, l := range dead {
		v.Life[l.Holder] = lease.Unknown
	}
	v.Unknown += len(dead)
	v.WhyUnknown = fmt.Errorf("of %d leases that were bound in this boot not one looks alive: they stay until another "+
		"sandbox lives", v.Unknown)
}

// imports returns Survey.imports. It lists each directory once, without a lock, so that Act must
// look for a lease again.
func (s *Service) imports(v Survey, served []Served) (out []Action) {
	leased, taken := map[lease.Place]lease.Lease{}, map[lease.Key]bool{}
	for _, l := range slices.Concat(v.Leases, v.Damaged) {
		leased[l.Place()] = l
		if l.State == lease.Bound && v.Life[l.Holder] != lease.Dead {
			taken[l.Key()] = true
		}
	}
	for _, p := range served {
		if v.Lost && !v.imported[p.Pool] { // the next ADD or an operator has to decide what a lost pool had
			continue
		}
		isLeased := func(a netip.Addr) bool {
			l, found := leased[lease.Place{Pool: p.Pool, Address: a}]
			return found && (l.State != lease.Bound || !l.Key().IsZero())
		}
		for _, found := range s.Node.AssignedAlive(p.Pool, v.caches[p.Pool], p.Since, isLeased) {
			hasNetns := leased[found.Place()].Holder.Netns.Ino != 0
			if key := found.Key(); hasNetns && (key.IsZero() || taken[key]) {
				continue // it has all that it can have
			}
			l := lease.Lease{Pool: found.Pool, Address: found.Address, Holder: lease.Holder{
				ContainerID: found.Holder.ContainerID, IfName: found.Holder.IfName}}
			out = append(out, Action{Do: Import, Lease: l, Reason: "host-local has given it to the container",
				scope: p.Scope})
		}
	}
	return out
}

// ActionKind is what an Action does.
type ActionKind string

const (
	// Repair imports the lease of a damaged record again.
	Repair ActionKind = "repair"
	// Release releases a lease whose holder is proven dead. Its window begins.
	Release ActionKind = "release"
	// Expire ends a hold that is over.
	Expire ActionKind = "expire"
	// Rebase converts the rest of a hold of an earlier boot to this boot's clock.
	Rebase ActionKind = "rebase"
	// WriteFile handles a bound lease whose file in host-local's directory is missing: the lease is
	// released if its holder is dead, because host-local has served the DEL; otherwise the file is
	// written again.
	WriteFile ActionKind = "write-file"
	// Import makes a lease for an address that host-local has assigned in a network that leasehold
	// serves. Without a lease the address would not be kept if host-local serves the DEL: flannel
	// and CRI-O process a DEL with the configuration of the ADD.
	Import ActionKind = "import"
)

// Action is one action of a plan.
type Action struct {
	Do     ActionKind
	Lease  lease.Lease    // as it was in the survey
	Life   lease.Liveness // of its holder, as it was in the survey
	Reason string

	scope operation.Scope
}

// Plan returns the actions that follow from a survey, none if it is unsafe. It is a pure function.
func Plan(v Survey) (out []Action) {
	if v.Unsafe != nil {
		return nil
	}
	for _, l := range v.Leases {
		switch {
		case l.State == lease.Bound && v.Life[l.Holder] == lease.Dead:
			out = append(out, Action{Do: Release, Lease: l, Life: lease.Dead, Reason: v.deathReason(l)})
		case l.Lapsed(v.Now) && v.Last[RefTo(l)] == lease.Dead:
			over := l.ReleasedAt.Wall.Add(time.Duration(l.Hold)).UTC().Format(time.RFC3339)
			out = append(out, Action{Do: Expire, Lease: l, Reason: "its time was over at " + over})
		case l.State == lease.Held:
			if next, err := lease.Apply(l, lease.Rebase{}, v.Now); err == nil {
				rest := next.Remaining(v.Now).Round(time.Second).String()
				out = append(out, Action{Do: Rebase, Lease: l,
					Reason: "it was released in an earlier boot; left of it: " + rest})
			}
		}
	}
	for _, l := range v.WithoutFile {
		if life := v.Life[l.Holder]; life != lease.Dead {
			out = append(out, Action{Do: WriteFile, Lease: l, Life: life, Reason: "host-local's file of it is gone"})
		}
	}
	out = append(out, v.imports...)
	for _, l := range v.Damaged { // these are last, because no action is performed after one that fails
		out = append(out, Action{Do: Repair, Lease: l, Reason: "its record is damaged"})
	}
	return out
}

func (v Survey) deathReason(l lease.Lease) string {
	if l.Holder.BootID != v.Now.BootID {
		return "the node has booted since"
	}
	return "its sandbox is gone: " + l.Holder.Netns.Path +
		" leads to it no longer, and no process or mount of the node has it"
}

// NextEnd returns the time until the next hold is over, or lease.Forever if there is none. It
// ignores holds that are over already.
func (v Survey) NextEnd() lease.Window {
	next := lease.Forever
	for _, l := range v.Leases {
		if rest := l.Remaining(v.Now); l.State == lease.Held && rest > 0 {
			next = min(next, rest)
		}
	}
	return next
}
