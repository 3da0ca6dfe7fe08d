package maintain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Networks returns the networks of the node: those of the CNI configuration, with its ranges, and
// those of the store that configured does not contain. Of the latter the subnets are not known, and
// of the gateways only how many addresses of a set they take: where they take any, each range has
// host-local's default, its first address.
func (s *Service) Networks(ctx context.Context, configured []operation.Scope) (out []operation.Scope, err error) {
	var usage []store.Usage
	err = s.Node.Store.View(ctx, func(tx *store.Tx) error { usage = tx.Usage(); return nil })
	out = slices.Clone(configured)
	for _, u := range usage {
		of := slices.IndexFunc(out, func(n operation.Scope) bool { return n.Pool == u.Pool })
		hasGateway := u.Size < u.Ranges.Size() || u.Size == pool.MaxSize
		for i := range u.Ranges {
			if hasGateway {
				u.Ranges[i].Gateway = u.Ranges[i].Start
			}
		}
		switch {
		case u.Ranges == nil || of >= 0 && of < len(configured):
		case of < 0:
			out = append(out, operation.Existing(u.Pool, []pool.Set{u.Ranges}))
		default:
			out[of].Sets = append(out[of].Sets, u.Ranges)
		}
	}
	return out, err
}

// Choice is the addresses that are reserved for a pod before it exists, or for one of the pods with
// a reservation name. Either Name or ReserveAs is set.
type Choice struct {
	Namespace, Name, ReserveAs string
	IfName                     string
	Addresses                  []netip.Addr // of different range sets of one network
	// Window is that of the pod, if its runtime does not pass annotations. Hold is how long an
	// address is held for a pod that never had it. A hold that the pod had lasts for at least Rest.
	Window, Hold, Rest lease.Window
	Owner              string // stored with the hold (lease.Lease.Owner)
	Viewer             string // the namespace whose users see the errors; "" if it is an operator
	// Ending are holds that are to end, with the reasons. One of an address ends in the transaction
	// in which the address is reserved, so that no pod gets it meanwhile.
	Ending map[Ref]string
}

// Reasons of a NotReserved error.
const (
	InvalidAddress   = "InvalidAddress"   // no pod can have the address
	AddressInUse     = "AddressInUse"     // it belongs to another pod or is held for one, or the pod has another one
	NamespaceLimited = "NamespaceLimited" // a limit forbids the hold
)

// NotReserved is returned if an address cannot be reserved. Then none of the Choice is.
type NotReserved struct {
	Address netip.Addr
	Reason  string
	Text    string
}

func (e *NotReserved) Error() string { return e.Address.String() + " " + e.Text }

// Reserve holds addresses for a pod that may not exist yet, all of them or none, and returns their
// leases. An address that the pod has already is left to it. It returns a NotReserved error for an
// address that cannot be held, and ErrNoHostView if it is not proven that the process sees the
// host.
func (s *Service) Reserve(ctx context.Context, networks []operation.Scope, choice Choice) (out []lease.Lease,
	err error) {
	network, sets, err := locateAll(networks, choice.Addresses)
	if err != nil {
		return nil, err
	}
	err = s.Node.Update(ctx, network, func(c *operation.Call) error {
		out = nil
		err := errors.Join(c.ProveView(), c.MayGiveAny(network.Pool))
		if err == nil { // its steps are kept, which nothing but these checks allows; nothing after it takes any
			err = c.NewBoot(network.Pool)
		}
		if err != nil {
			return err
		}
		for i, addr := range choice.Addresses {
			l, err := reserve(c, choice, lease.Place{Pool: network.Pool, Address: addr}, sets[i].ID())
			if err != nil {
				return err
			}
			out = append(out, l)
		}
		return nil
	})
	return out, err
}

// reserve reserves one address. It does not change the lease of a pod that has the address.
func reserve(c *operation.Call, choice Choice, at lease.Place, set string) (lease.Lease, error) {
	want := choice.lease(at, set, c.Now)
	old, _, err := c.Present(at)
	if reason, isEnding := choice.ends(old); err == nil && isEnding {
		_, err = c.End(old, lease.Revoke{LastHolder: c.Evidence.Last(old)}, c.Now, reason)
	}
	if err == nil && !(old.State == lease.Bound && old.Key() == want.Key()) {
		old, err = c.CollectAt(at)
	}
	if err != nil {
		return old, err
	}
	own, refused := old.State != lease.None && old.Key() == want.Key(), &NotReserved{Address: at.Address}
	event := lease.Reserve{Lease: want, ID: operation.NewID(), Hold: choice.Hold, LastHolder: c.Evidence.Last(old)}
	switch {
	case own && old.State == lease.Bound:
		return old, nil
	case own && old.IsUnused():
		event.Hold = max(choice.Hold, 1)
	case own:
		event.Hold = choice.Rest
	}
	if !old.IsHold {
		refused.Reason, refused.Text = NamespaceLimited, limitText(c, want)
	}
	next, err := lease.Apply(old, event, c.Now)
	if err != nil || old.State != lease.None && c.MayGive(old) != nil {
		refused.Reason, refused.Text = AddressInUse, old.Describe(choice.Viewer, c.Now)
	}
	other, err := choice.another(c.Tx, want)
	switch {
	case err != nil:
		return old, err
	case refused.Text == "" && other.IsValid():
		refused.Reason, refused.Text = AddressInUse,
			fmt.Sprintf("cannot be held: %s has %s of the same ranges; release that first", choice.who(), other)
	}
	switch {
	case refused.Text != "":
		return old, refused
	case own && old.IsHold && old.Remaining(c.Now) == next.Remaining(c.Now):
		return old, nil
	}
	why := fmt.Sprintf("held for %s, %s", choice.who(), event.Hold)
	return next, cmp.Or(c.Put(old, next), c.Log(next, store.EventReserved, why))
}

// ends reports whether a lease is a hold that is to end, and why. A pod may have taken it
// meanwhile.
func (choice Choice) ends(l lease.Lease) (reason string, isEnding bool) {
	reason, isEnding = choice.Ending[RefTo(l)]
	return reason, isEnding && l.State == lease.Held
}

// another returns another address of the range set of a new hold that its pod has, or that is held
// for its pod. A pod has one address of each set.
func (choice Choice) another(tx *store.Tx, of lease.Lease) (netip.Addr, error) {
	if of.ReserveAs != "" {
		return netip.Addr{}, nil // it may have any number
	}
	leases, err := tx.ByKey(of.Key())
	for _, l := range leases {
		_, isEnding := choice.ends(l)
		isOther := l.Set == of.Set && l.Address != of.Address && !isEnding
		if isOther && (l.State == lease.Bound || l.IsHold) {
			return l.Address, err
		}
	}
	return netip.Addr{}, err
}

// limitText returns the limit of the namespace that forbids a hold, "" if none does.
func limitText(c *operation.Call, l lease.Lease) string {
	if limit := c.HoldLimit(l); limit != "" {
		return "cannot be held: " + limit
	}
	if _, why := c.Tx.Limits().Of(l.Namespace).Window(l.Window, l.Namespace); why != "" {
		return "cannot be held: " + why
	}
	return ""
}

// lease returns the lease of a new hold without its times. The hold of a reservation name gets the
// name of no pod that exists, a different one for each choice, because the API shows leases by pod.
func (choice Choice) lease(at lease.Place, set string, now lease.Instant) lease.Lease {
	l := lease.Lease{Pool: at.Pool, Address: at.Address, Set: set, Namespace: choice.Namespace, Name: choice.Name,
		ReserveAs: choice.ReserveAs, Window: choice.Window, CoolDown: policy.Defaults().CoolDown,
		Owner:  choice.Owner,
		Holder: lease.Holder{IfName: choice.IfName, BootID: now.BootID}}
	if choice.ReserveAs != "" {
		digits := strings.NewReplacer(".", "-", ":", "-").Replace(choice.Addresses[0].StringExpanded())
		l.Name = choice.ReserveAs + "-" + digits
	}
	return l
}

func (choice Choice) who() string {
	if choice.ReserveAs != "" {
		return "reservation name " + choice.Namespace + "/" + choice.ReserveAs
	}
	return "pod " + choice.Namespace + "/" + choice.Name
}

// locateAll returns the network and the range set of each address.
func locateAll(networks []operation.Scope, addrs []netip.Addr) (in operation.Scope, sets []pool.Set, err error) {
	for i, addr := range addrs {
		n, set, text := locate(networks, addr)
		switch {
		case text != "":
		case i > 0 && n.Pool != in.Pool:
			text = fmt.Sprintf("is of network %s, and %s of network %s", n.Pool.Network, addrs[0], in.Pool.Network)
		case slices.ContainsFunc(sets, func(s pool.Set) bool { return s.ID() == set.ID() }):
			text = fmt.Sprintf("is of the same ranges as another of these addresses: a pod gets one address of %s", set)
		}
		if text != "" {
			return in, nil, &NotReserved{addr, InvalidAddress, text}
		}
		in, sets = n, append(sets, set)
	}
	return in, sets, nil
}

// locate returns the network and the range set of an address, or why no pod can get the address.
func locate(networks []operation.Scope, addr netip.Addr) (in operation.Scope, set pool.Set, why string) {
	var all []string
	for _, n := range networks {
		for _, s := range n.Sets {
			all = append(all, s.String())
			switch {
			case !s.Usable(addr):
			case set != nil:
				return in, nil, fmt.Sprintf("is in ranges of the networks %s and %s; name one with --network",
					in.Pool.Network, n.Pool.Network)
			default:
				in, set = n, s
			}
		}
	}
	if set == nil {
		why = "is a gateway, or in no range of this node: " +
			cmp.Or(strings.Join(all, " "), "it has none that leasehold serves")
	}
	return in, set, why
}
