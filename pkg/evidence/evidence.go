// Package evidence says what the host shows of the holders of leases: whether they are alive, dead,
// or that it cannot be told (docs/design.md, "Evidence of life").
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

// Host is what is asked of the kernel: *sandbox.Host, or a simulated one.
type Host interface {
	QuickState(holder lease.Holder, boot string) lease.Liveness
	PathGone(holder lease.Holder) (bool, error)
	AddressesIn(netns lease.Netns) ([]netip.Addr, error)
	ProcessNetns() sandbox.NetnsSet
	MountedNetns() sandbox.NetnsSet
}

// Evidence is what one look at the host has shown of holders. It looks once for
// each, so that one decision never rests on two answers.
type Evidence struct {
	host  Host
	boot  string
	bound iter.Seq[lease.Lease] // every bound lease
	// Twice: processes are asked twice, for one that moves on can hide from one
	// look, and mounts as well. For whoever has the time.
	Twice bool

	plugged map[lease.Netns]plugged // what interfaces have
	looked  map[lease.Holder]lease.Liveness
	proven  map[lease.Holder]lease.Liveness
	doubts  map[lease.Holder]error   // why it is proven neither that they live nor that they do not
	procs   *sandbox.NetnsSet        // asked for when they are needed first
	inNetns map[uint64][]lease.Lease // bound, by the number of the namespace
}

// BoundIn are the bound leases of a list.
func BoundIn(list []lease.Lease) iter.Seq[lease.Lease] {
	return func(yield func(lease.Lease) bool) {
		for _, l := range list {
			if l.State == lease.Bound && !yield(l) {
				return
			}
		}
	}
}

func New(host Host, boot string, bound iter.Seq[lease.Lease]) Evidence {
	return Evidence{
		host: host, boot: boot, bound: bound,
		plugged: map[lease.Netns]plugged{}, looked: map[lease.Holder]lease.Liveness{},
		proven: map[lease.Holder]lease.Liveness{},
		doubts: map[lease.Holder]error{},
	}
}

// Look is the quick look at a holder.
func (e *Evidence) Look(l lease.Lease) lease.Liveness {
	life, ok := e.looked[l.Holder]
	if !ok {
		life = e.host.QuickState(l.Holder, e.boot)
		e.looked[l.Holder] = life
	}
	return life
}

// Prove looks harder: where the path of the namespace leads to it no longer,
// all processes are asked. For taking over and collecting only.
func (e *Evidence) Prove(l lease.Lease) lease.Liveness {
	life, ok := e.proven[l.Holder]
	if !ok {
		life, e.doubts[l.Holder] = e.proveAnew(l)
		e.proven[l.Holder] = life
	}
	return life
}

// SetProven records what was proven of a holder before.
func (e *Evidence) SetProven(h lease.Holder, life lease.Liveness) { e.proven[h] = life }

// Doubt returns why prove could not tell whether a holder lives; nil where it could.
func (e *Evidence) Doubt(l lease.Lease) error {
	if e.Prove(l) != lease.Unknown {
		return nil
	}
	err := cmp.Or(e.doubts[l.Holder], errors.New("it could not be looked at"))
	if e.boot == "" {
		err = fmt.Errorf("%w, and the boot id cannot be read", err)
	}
	return err
}

func (e *Evidence) proveAnew(l lease.Lease) (lease.Liveness, error) {
	switch life := e.Look(l); {
	case life == lease.Alive && e.IsMadeAnew(l):
		return lease.Dead, nil
	case life != lease.Unknown:
		return life, nil
	}
	gone, err := e.host.PathGone(l.Holder)
	if err != nil {
		return lease.Unknown, err
	}
	if !gone {
		return lease.Alive, nil // it is there by now
	}
	life := e.processes().Liveness(l.Holder.Netns)
	if life == lease.Alive && e.isReissued(l) {
		return lease.Dead, nil
	}
	return life, e.processes().Incomplete()
}

// plugged are the addresses in a network namespace, or why they cannot be told.
type plugged struct {
	addrs []netip.Addr
	err   error
}

// LastHas reports whether the last holder of a held lease still has the address: on an
// interface of its network namespace, which may live on for long after the interface
// was unplugged. Unknown, and why, where it cannot be looked at. A holder of whom no
// namespace is known has nothing to look at: its DEL is all there is.
func (e *Evidence) LastHas(l lease.Lease) (lease.Liveness, error) {
	switch life := e.Look(l); {
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

// hasAddress reports whether an interface in the namespace at the holder's path has the address.
// Unknown, and why, where it cannot be looked at.
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

// Last is lastHas for an event of the lease.
func (e *Evidence) Last(l lease.Lease) lease.Liveness {
	life, _ := e.LastHas(l)
	return life
}

// LifeOf is what an event that ends a lease has to know: a proof for a bound one.
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

// IsMadeAnew reports whether the namespace at the holder's path, which has the holder's number, is
// another one, as after `ip netns del x; ip netns add x`: an interface there has the address of a
// later container (isReissued), and none has this one. Where no address is on an interface, as
// before the plugin that called has made one, nothing is proven.
func (e *Evidence) IsMadeAnew(l lease.Lease) bool {
	for _, o := range e.successors(l) {
		theirs, err := e.hasAddress(o)
		if err != nil || theirs != lease.Alive {
			continue
		}
		has, err := e.hasAddress(l)
		return err == nil && has == lease.Dead
	}
	return false
}

// isReissued reports whether the number of the namespace was given again. The kernel gives the
// number of a namespace that has ended to a new one. If the lease of another container was bound
// later, to the same interface of a namespace of this number, then it is that container's by now: a
// namespace has an interface once. (Leases of two networks of one pod may know its namespace by two
// paths; they name two interfaces and one container.)
func (e *Evidence) isReissued(l lease.Lease) bool { return len(e.successors(l)) > 0 }

// successors returns the leases of other containers that were bound later, to the same interface of
// a namespace of the same number.
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
