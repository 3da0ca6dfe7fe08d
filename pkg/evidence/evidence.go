// Package evidence finds out whether the holders of leases are alive, dead, or neither is proven
// (docs/design.md, "Evidence of life").
package evidence

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
)

// Host provides the state of the kernel: *sandbox.Host, or a simulated one.
type Host interface {
	QuickState(holder lease.Holder, boot string) lease.Liveness
	PathGone(holder lease.Holder) (bool, error)
	AddressesIn(netns lease.Netns) ([]netip.Addr, error)
	ProcessNetns() sandbox.NetnsSet
	MountedNetns() sandbox.NetnsSet
}

// Evidence has the state of holders at one time. It examines each holder once, so that a decision
// is never based on two different answers.
type Evidence struct {
	host  Host
	boot  string
	bound iter.Seq[lease.Lease] // every bound lease
	// Twice makes Prove read the processes twice, because one that changes its namespace can be
	// missed, and the mounts as well. It takes longer.
	Twice bool

	plugged map[lease.Netns]plugged // addresses on interfaces
	quick   map[lease.Holder]lease.Liveness
	proven  map[lease.Holder]lease.Liveness
	doubts  map[lease.Holder]error   // why neither is proven
	procs   *sandbox.NetnsSet        // nil until it is needed
	inNetns map[uint64][]lease.Lease // bound leases by the inode of the namespace
}

// BoundIn returns the bound leases of a list.
func BoundIn(list []lease.Lease) iter.Seq[lease.Lease] {
	return func(yield func(lease.Lease) bool) {
		for _, l := range list {
			if l.State == lease.Bound && !yield(l) {
				return
			}
		}
	}
}

// New returns the Evidence for one decision. boot is the id of this boot, "" if it cannot be read.
// bound are all bound leases.
func New(host Host, boot string, bound iter.Seq[lease.Lease]) Evidence {
	return Evidence{
		host: host, boot: boot, bound: bound,
		plugged: map[lease.Netns]plugged{}, quick: map[lease.Holder]lease.Liveness{},
		proven: map[lease.Holder]lease.Liveness{},
		doubts: map[lease.Holder]error{},
	}
}

// QuickState returns the state of a holder as far as the path of its namespace shows it.
func (e *Evidence) QuickState(l lease.Lease) lease.Liveness {
	life, ok := e.quick[l.Holder]
	if !ok {
		life = e.host.QuickState(l.Holder, e.boot)
		e.quick[l.Holder] = life
	}
	return life
}

// Prove returns the state of a holder. If the path of its namespace does not lead to it, Prove
// reads the namespaces of all processes, which takes long.
func (e *Evidence) Prove(l lease.Lease) lease.Liveness {
	life, ok := e.proven[l.Holder]
	if !ok {
		life, e.doubts[l.Holder] = e.prove(l)
		e.proven[l.Holder] = life
	}
	return life
}

// SetProven records the state of a holder that was proven before.
func (e *Evidence) SetProven(h lease.Holder, life lease.Liveness) { e.proven[h] = life }

// Doubt returns why Prove returns Unknown for a holder, nil if it does not.
func (e *Evidence) Doubt(l lease.Lease) error {
	if e.Prove(l) != lease.Unknown {
		return nil
	}
	err := cmp.Or(e.doubts[l.Holder], errors.New("its namespace could not be read"))
	if e.boot == "" {
		err = fmt.Errorf("%w, and the boot id cannot be read", err)
	}
	return err
}

func (e *Evidence) prove(l lease.Lease) (lease.Liveness, error) {
	switch life := e.QuickState(l); {
	case life == lease.Alive && e.IsReplaced(l):
		return lease.Dead, nil
	case life != lease.Unknown:
		return life, nil
	}
	gone, err := e.host.PathGone(l.Holder)
	if err != nil {
		return lease.Unknown, err
	}
	if !gone {
		return lease.Alive, nil // the path leads to it again
	}
	life := e.processes().Liveness(l.Holder.Netns)
	if life == lease.Alive && e.isReissued(l) {
		return lease.Dead, nil
	}
	return life, e.processes().Incomplete()
}

// plugged are the addresses in a network namespace, or why they cannot be read.
type plugged struct {
	addrs []netip.Addr
	err   error
}

// LastHas returns Alive if an interface in the network namespace of the last holder of a held lease
// still has the address, and Dead if none has it. The namespace may exist long after the interface
// was removed. It returns Unknown and the reason if the namespace cannot be read. If the namespace
// of the holder is not known it returns Dead, because there was a DEL.
func (e *Evidence) LastHas(l lease.Lease) (lease.Liveness, error) {
	switch life := e.QuickState(l); {
	case life == lease.Dead, l.Holder.Netns.Ino == 0:
		return lease.Dead, nil
	case life == lease.Unknown:
		switch gone, err := e.host.PathGone(l.Holder); {
		case err != nil:
			return lease.Unknown, err
		case gone:
			return lease.Dead, nil
		}
	}
	return e.hasAddress(l)
}

// hasAddress returns Alive if an interface in the namespace at the holder's path has the address,
// Dead if none has it, and Unknown and the reason if the namespace cannot be read.
func (e *Evidence) hasAddress(l lease.Lease) (lease.Liveness, error) {
	in, known := e.plugged[l.Holder.Netns]
	if !known {
		in.addrs, in.err = e.host.AddressesIn(l.Holder.Netns)
		e.plugged[l.Holder.Netns] = in
	}
	switch {
	case errors.Is(in.err, sandbox.ErrNetnsGone):
		return lease.Dead, nil
	case in.err != nil:
		return lease.Unknown, in.err
	case slices.Contains(in.addrs, l.Address):
		return lease.Alive, nil
	}
	return lease.Dead, nil
}

// Last is LastHas without the reason.
func (e *Evidence) Last(l lease.Lease) lease.Liveness {
	life, _ := e.LastHas(l)
	return life
}

// LifeOf returns the state that an event needs to end a lease: Last of a held one, Prove of a bound
// one.
func (e *Evidence) LifeOf(l lease.Lease) lease.Liveness {
	if l.State == lease.Held {
		return e.Last(l)
	}
	return e.Prove(l)
}

func (e *Evidence) processes() sandbox.NetnsSet {
	if e.procs == nil {
		p := e.host.ProcessNetns()
		if e.Twice {
			p = p.Union(e.host.ProcessNetns()).Union(e.host.MountedNetns())
		}
		e.procs = &p
	}
	return *e.procs
}

// IsReplaced reports whether the namespace at the holder's path is another one, although it has the
// same inode, as after `ip netns del x; ip netns add x`: an interface there has the address of a
// later container (isReissued), and none has this one. It reports false as long as there is no
// interface, which is the case until the IPAM plugin has returned.
func (e *Evidence) IsReplaced(l lease.Lease) bool {
	for _, o := range e.successors(l) {
		successor, err := e.hasAddress(o)
		if err != nil || successor != lease.Alive {
			continue
		}
		has, err := e.hasAddress(l)
		return err == nil && has == lease.Dead
	}
	return false
}

// isReissued reports whether another namespace has the inode of the holder's. The kernel reuses the
// inode of a namespace that has ended. If another container was bound later, to the same interface
// of a namespace of this inode, it is that container's, because a namespace has only one interface
// of a name. (The leases of two networks of a pod may have its namespace by two paths, but they
// have two interfaces and one container.)
func (e *Evidence) isReissued(l lease.Lease) bool { return len(e.successors(l)) > 0 }

// successors returns the leases of other containers that were bound later, to the same interface of
// a namespace with the same inode.
func (e *Evidence) successors(l lease.Lease) (out []lease.Lease) {
	if e.inNetns == nil {
		e.inNetns = map[uint64][]lease.Lease{}
		for o := range e.bound {
			e.inNetns[o.Holder.Netns.Ino] = append(e.inNetns[o.Holder.Netns.Ino], o)
		}
	}
	for _, o := range e.inNetns[l.Holder.Netns.Ino] {
		if o.Holder.ContainerID != l.Holder.ContainerID && o.Holder.IfName == l.Holder.IfName &&
			o.BoundAt.IsAfter(l.BoundAt) {
			out = append(out, o)
		}
	}
	return out
}
