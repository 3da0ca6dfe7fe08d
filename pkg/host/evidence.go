package host

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Kernel provides what Evidence needs of the kernel: *Host, or a simulated one.
type Kernel interface {
	QuickState(holder lease.Holder, boot string) (lease.Liveness, error)
	AddressesIn(netns lease.Netns) ([]netip.Addr, error)
	// ProcessNetns and MountedNetns return inodes. After an error some may be missing.
	ProcessNetns() (map[uint64]bool, error)
	MountedNetns() (map[uint64]bool, error)
	Namespaces() ([]Namespace, error)
}

// Evidence determines the states of holders for one decision. It examines each holder once, so that
// a decision is never based on two different answers.
type Evidence struct {
	host  Kernel
	boot  string
	bound iter.Seq[lease.Lease] // every bound lease
	// Twice makes Prove read the processes twice, because one scan may miss a process that changes
	// its namespace, and also the mounts. The agent sets it. It takes longer.
	Twice bool

	plugged map[lease.Netns]plugged  // results of Host.AddressesIn
	quick   map[lease.Holder]state   // results of Host.QuickState
	proven  map[lease.Holder]state   // results of Prove
	procs   map[uint64]bool          // nil until it is needed
	unread  error                    // why procs may be incomplete
	inNetns map[uint64][]lease.Lease // bound leases by the inode of the namespace
}

// state is the state of a holder, and the reason if it is Unknown because something cannot be read.
type state struct {
	life lease.Liveness
	why  error
}

// BoundIn yields the bound leases of a list.
func BoundIn(list []lease.Lease) iter.Seq[lease.Lease] {
	return func(yield func(lease.Lease) bool) {
		for _, l := range list {
			if l.State == lease.Bound && !yield(l) {
				return
			}
		}
	}
}

// NewEvidence returns the Evidence for one decision. boot is the id of this boot, "" if it cannot
// be read. bound yields all bound leases.
func NewEvidence(host Kernel, boot string, bound iter.Seq[lease.Lease]) Evidence {
	return Evidence{
		host: host, boot: boot, bound: bound,
		plugged: map[lease.Netns]plugged{}, quick: map[lease.Holder]state{}, proven: map[lease.Holder]state{},
	}
}

// QuickState returns the state of a lease's holder as far as the boot id and the path of its
// namespace show it (Host.QuickState).
func (e *Evidence) QuickState(l lease.Lease) lease.Liveness {
	life, _ := e.quickState(l)
	return life
}

func (e *Evidence) quickState(l lease.Lease) (lease.Liveness, error) {
	s, ok := e.quick[l.Holder]
	if !ok {
		s.life, s.why = e.host.QuickState(l.Holder, e.boot)
		e.quick[l.Holder] = s
	}
	return s.life, s.why
}

// Prove returns the state of a bound lease's holder. If the path of its namespace does not lead to
// the namespace, Prove reads the namespaces of all processes, which takes long.
func (e *Evidence) Prove(l lease.Lease) lease.Liveness {
	s, ok := e.proven[l.Holder]
	if !ok {
		s.life, s.why = e.prove(l)
		e.proven[l.Holder] = s
	}
	return s.life
}

// SetProven records the state of a holder that another Evidence has proven. Prove returns it.
func (e *Evidence) SetProven(h lease.Holder, life lease.Liveness) { e.proven[h] = state{life: life} }

// WhyUnknown returns the reason if Prove returns Unknown for a lease's holder, otherwise nil.
func (e *Evidence) WhyUnknown(l lease.Lease) error {
	if e.Prove(l) != lease.Unknown {
		return nil
	}
	err := cmp.Or(e.proven[l.Holder].why, errors.New("its namespace could not be read"))
	if e.boot == "" {
		err = fmt.Errorf("%w, and the boot id cannot be read", err)
	}
	return err
}

func (e *Evidence) prove(l lease.Lease) (lease.Liveness, error) {
	life, err := e.quickState(l)
	switch {
	case life == lease.Alive && e.IsReplaced(l):
		return lease.Dead, nil
	case life != lease.Unknown, err != nil:
		return life, err
	}
	inUse, err := e.inodes()
	switch {
	case inUse[l.Holder.Netns.Ino] && !e.isReissued(l):
		return lease.Alive, nil
	case inUse[l.Holder.Netns.Ino], err == nil:
		return lease.Dead, nil
	}
	return lease.Unknown, err
}

// Namespace returns Alive if the network namespace of a bound lease's holder is at its path, or
// another path leads to a namespace that has both its inode number and the address on an interface.
// The number alone is no proof, because the kernel issues it again. It returns Unknown and the
// reason if something cannot be read.
func (e *Evidence) Namespace(l lease.Lease) (lease.Liveness, error) {
	life, err := e.quickState(l)
	switch {
	case life == lease.Alive && !e.IsReplaced(l):
		return lease.Alive, nil
	case life == lease.Dead, err != nil:
		return life, err
	}
	all, err := e.host.Namespaces()
	if err != nil {
		return lease.Unknown, err
	}
	for _, n := range all {
		switch {
		case n.Netns.Ino != 0 && !n.Netns.Same(l.Holder.Netns):
		case slices.ContainsFunc(n.Addresses, func(on Address) bool { return on.Addr == l.Address }):
			return lease.Alive, nil
		case n.Err != nil:
			return lease.Unknown, n.Err
		}
	}
	return lease.Dead, nil
}

// NamespaceOf returns a network namespace in which an interface has an address, own if that has it,
// and the zero Netns if none is found. It is for a lease whose holder's namespace is not known.
func (e *Evidence) NamespaceOf(addr netip.Addr, own lease.Netns) (found lease.Netns) {
	all, _ := e.host.Namespaces() // what cannot be read proves nothing
	for _, n := range all {
		switch {
		case !slices.ContainsFunc(n.Addresses, func(on Address) bool { return on.Addr == addr }):
		case n.Netns.Same(own):
			return own
		default:
			found = n.Netns
		}
	}
	return found
}

// plugged are the addresses in a network namespace, or why they cannot be read.
type plugged struct {
	addrs []netip.Addr
	err   error
}

// Last returns Alive if an interface in the network namespace of the last holder of a held lease
// still has the address, and Dead if none has it, even if the namespace exists. It returns Unknown
// if the namespace cannot be read. If the lease does not know the namespace of the last holder,
// Last returns Dead, because a held lease has had its DEL.
func (e *Evidence) Last(l lease.Lease) lease.Liveness {
	switch life, err := e.quickState(l); {
	case l.Holder.Netns.Ino == 0, life == lease.Dead, life == lease.Unknown && err == nil:
		return lease.Dead
	case life == lease.Unknown:
		return life
	}
	return e.hasAddress(l)
}

// hasAddress returns Alive if an interface in the namespace at the holder's path has the address,
// Dead if none has it, and Unknown if the namespace cannot be read.
func (e *Evidence) hasAddress(l lease.Lease) lease.Liveness {
	in, known := e.plugged[l.Holder.Netns]
	if !known {
		in.addrs, in.err = e.host.AddressesIn(l.Holder.Netns)
		e.plugged[l.Holder.Netns] = in
	}
	switch {
	case errors.Is(in.err, ErrNetnsGone):
		return lease.Dead
	case in.err != nil:
		return lease.Unknown
	case slices.Contains(in.addrs, l.Address):
		return lease.Alive
	}
	return lease.Dead
}

// LifeOf returns the state that the events of package lease need: Last for a held lease, Prove for
// a bound one.
func (e *Evidence) LifeOf(l lease.Lease) lease.Liveness {
	if l.State == lease.Held {
		return e.Last(l)
	}
	return e.Prove(l)
}

// inodes returns the network namespaces in use. After an error some may be missing.
func (e *Evidence) inodes() (map[uint64]bool, error) {
	if e.procs != nil {
		return e.procs, e.unread
	}
	reads := []func() (map[uint64]bool, error){e.host.ProcessNetns}
	if e.Twice {
		reads = append(reads, e.host.ProcessNetns, e.host.MountedNetns)
	}
	e.procs = map[uint64]bool{}
	for _, read := range reads {
		inodes, err := read()
		maps.Copy(e.procs, inodes)
		e.unread = cmp.Or(e.unread, err)
	}
	return e.procs, e.unread
}

// IsReplaced reports whether the namespace at the holder's path is another one with the same inode,
// as may be the case after `ip netns del x; ip netns add x`. The proof is that an interface there
// has the address of a later container's lease (successors), and no interface has the address of
// this lease. Until the IPAM plugin has returned there is no interface, and IsReplaced reports
// false.
func (e *Evidence) IsReplaced(l lease.Lease) bool {
	for _, o := range e.successors(l) {
		if e.hasAddress(o) == lease.Alive {
			return e.hasAddress(l) == lease.Dead
		}
	}
	return false
}

// isReissued reports whether the kernel has given the inode number of the holder's namespace to the
// namespace of another container, which it may do once the first one has ended. A namespace has at
// most one interface with a given name. So if a lease of another container was bound later, with
// the same inode number and the same interface name, the number belongs to that container's
// namespace. Two networks of one pod are not mistaken for this, because their leases have the same
// container id. A holder whose namespace is not known (inode number 0) does not get here: Prove
// returns Unknown for it.
func (e *Evidence) isReissued(l lease.Lease) bool { return len(e.successors(l)) > 0 }

// successors returns the leases that isReissued looks for.
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
