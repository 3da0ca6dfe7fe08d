package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

const (
	requestResource = "addressrequests"
	// requestInterval is how often requests are read again that the manager does not name, and
	// addresses are tried again, if nothing else changes.
	requestInterval = time.Minute
	// requestRest is how long at least the hold of a pod that had the address lasts while a request
	// names the address. It is not longer, because the pod's own window counts without the request.
	// It is also how long a hold that no pod has had lasts after its namespace may not choose any
	// more.
	requestRest = 10 * time.Minute
	// maxReserved is the largest number of entries whose addresses a pass tries to hold, so that
	// they do not delay anything else for long. Those that cannot be held are tried again.
	maxReserved = 32
	// requestOwner begins lease.Lease.Owner of a hold that no pod has had: then come the name and
	// the UID of the request.
	requestOwner = "AddressRequest/"
)

// namedRequest is an AddressRequest that the manager names, with the first addresses of the entries
// that it has found to be of this node, or that a hold belongs to.
type namedRequest struct {
	ipamv1.RequestReference
	object *ipamv1.AddressRequest // as it was read, nil if it does not exist any more
}

// requestPlan is what follows from AddressRequests.
type requestPlan struct {
	End    map[string][]lease.Lease // by reason: the holds that no pod has had and that no request asks for
	Wishes []*wish
}

// wish is an entry of a request, with addresses of this node.
type wish struct {
	request *ipamv1.AddressRequest
	entry   ipamv1.AddressRequestEntry
	choice  maintain.Choice
	reserve bool                      // the choice is to be reserved; then the leases show the states
	takes   bool                      // an address has a hold that is to end
	states  []ipamv1.RequestedAddress // none if they are not known, or not of this node
}

// setStates sets the states of all addresses.
func (w *wish) setStates(state ipamv1.RequestState, reason, message string) {
	if w.request.Spec.Wait && reason == maintain.AddressInUse {
		state = ipamv1.RequestWaiting
	}
	w.states = nil
	for _, a := range w.entry.Addresses {
		w.states = append(w.states, ipamv1.RequestedAddress{Address: a, NodeName: w.entry.NodeName, State: state,
			Reason: reason, Message: kube.Cut(message, ipamv1.MaxMessage), ObservedGeneration: w.request.Generation})
	}
}

// planRequests returns what follows from the requests that were read; one that is missing is not
// known. areCurrent reports whether the limits in the view are those of the cluster as it is now;
// others end nothing. networks are those of the node.
//
// A hold that is to end counts as ended: if its address is reserved, both happen at once.
func planRequests(node string, read map[kube.Name]namedRequest, view maintain.NodeView, areCurrent bool,
	networks []operation.Scope) (plan requestPlan) {
	plan.End = map[string][]lease.Lease{}
	leases, ending, endsAt := map[netip.Addr][]lease.Lease{}, map[maintain.Ref]string{}, map[netip.Addr]bool{}
	wishes := map[kube.Name][]*wish{}
	for name, r := range read {
		wishes[name] = wishesOf(r.object, node, view.Now)
	}
	for _, l := range view.Leases {
		why := ""
		name, uid, isOwned := requestOf(l)
		if r, isKnown := read[name]; isOwned && isKnown {
			why = whyEnd(l, r.object, uid, wishes[name], networks)
		}
		if why == "" {
			leases[l.Address] = append(leases[l.Address], l)
		} else {
			plan.End[why] = append(plan.End[why], l)
			ending[maintain.RefTo(l)], endsAt[l.Address] = why, true
		}
	}
	for name, r := range read {
		for _, w := range wishes[name] {
			isNamed := r.UID == string(r.object.UID) && slices.Contains(r.Addresses, w.choice.Addresses[0].String())
			w.choice.Ending = ending
			w.decide(leases, view, areCurrent, isNamed)
			w.takes = w.reserve && slices.ContainsFunc(w.choice.Addresses, func(a netip.Addr) bool { return endsAt[a] })
			plan.Wishes = append(plan.Wishes, w)
		}
	}
	return plan
}

// whyEnd returns why a hold that no pod has had is to end, "" if it is not. r and uid are the
// request in its owner. That the manager does not name it is no reason: the manager may be away.
func whyEnd(l lease.Lease, r *ipamv1.AddressRequest, uid string, wishes []*wish, networks []operation.Scope,
) (why string) {
	if r == nil || string(r.UID) != uid || r.DeletionTimestamp != nil {
		return "its AddressRequest was deleted"
	}
	asksFor := func(w *wish) bool { return w.owns(l) && w.choice.Hold > 0 }
	isElsewhere := func(n operation.Scope) bool {
		isIn := func(s pool.Set) bool { return s.Contains(l.Address) }
		return n.Pool == l.Pool && !slices.ContainsFunc(n.Sets, isIn)
	}
	switch {
	case !slices.ContainsFunc(wishes, asksFor):
		return "its AddressRequest was changed, or spec.for is over"
	case slices.ContainsFunc(networks, isElsewhere):
		return "no range of this node contains it"
	}
	return ""
}

// wishesOf returns the wishes of a request that may be of a node, without what follows. One that is
// not valid is Rejected.
func wishesOf(r *ipamv1.AddressRequest, node string, now lease.Instant) (out []*wish) {
	if r == nil || r.DeletionTimestamp != nil {
		return nil
	}
	for _, e := range r.Spec.Entries {
		if e.NodeName != "" && e.NodeName != node {
			continue
		}
		e.NodeName = node
		w := &wish{request: r, entry: e, choice: maintain.Choice{Namespace: r.Namespace, Name: e.PodName,
			ReserveAs: e.Reservation, IfName: cmp.Or(e.Interface, "eth0"), Rest: lease.Window(requestRest),
			Owner: requestOwner + r.Name + "/" + string(r.UID), Viewer: r.Namespace}}
		c := &w.choice
		window, err := policy.ParseWindow(cmp.Or(r.Spec.For, lease.Forever.String()))
		if c.Window, c.Hold = window, window; window != lease.Forever {
			c.Hold = window - lease.Window(now.Wall.Sub(r.CreationTimestamp.Time))
		}
		for _, text := range e.Addresses {
			addr, parseErr := netip.ParseAddr(text)
			err = errors.Join(err, parseErr)
			c.Addresses = append(c.Addresses, addr.Unmap())
		}
		isName := lease.IsPodName(c.Name) && c.ReserveAs == "" || lease.IsReserveAs(c.ReserveAs) && c.Name == ""
		if err != nil || !isName || !hostlocal.IsIfName(c.IfName) {
			w.setStates(ipamv1.RequestRejected, maintain.InvalidAddress,
				"the entry has no valid name, interface or address")
		}
		out = append(out, w)
	}
	return out
}

// shown returns the state of the first address that this agent has written for the generation of
// the request, the zero value if there is none.
func (w *wish) shown() ipamv1.RequestedAddress {
	for _, a := range w.request.Status.Addresses {
		if a.Address == w.entry.Addresses[0] && a.NodeName == w.entry.NodeName &&
			a.ObservedGeneration == w.request.Generation {
			return a
		}
	}
	return ipamv1.RequestedAddress{}
}

// isFor reports whether a lease has one of the addresses of the wish, and its key.
func (w *wish) isFor(l lease.Lease) bool {
	c, k := w.choice, l.Key()
	return slices.Contains(c.Addresses, l.Address) &&
		k == lease.Key{Pool: l.Pool, Namespace: c.Namespace, Name: c.Name, ReserveAs: c.ReserveAs, IfName: c.IfName}
}

// owns reports whether a lease is a hold that was made for the wish and that no pod has had.
func (w *wish) owns(l lease.Lease) bool {
	return l.IsUnused() && l.Owner == w.choice.Owner && w.isFor(l)
}

// decide decides whether the choice is to be reserved, and the states. leases are those of the node
// by address. The first case that applies counts:
//
//	case                                                          reserved  states
//	it is not named here, and may choose or has no hold           no        not known
//	it is not valid                                               no        Rejected
//	spec.for is over                                              no        Expired
//	it may not choose, by limits that may be old                  no        not known
//	it may not choose, and has no hold                            no        Rejected NotAllowed
//	it may not choose, and has a hold                             shorter   Held NotAllowed
//	all addresses have leases of it                               no        Held or Bound, each
//	an address was in use when it was shown, without spec.wait    no        Rejected as shown
//	an address has another lease                                  no        Rejected or Waiting
//	otherwise                                                     yes       by the leases, later
//
// If the manager does not name it here, the manager may be away, or another node may have the
// addresses. A hold is one that no pod has had.
func (w *wish) decide(leases map[netip.Addr][]lease.Lease, view maintain.NodeView, areCurrent, isNamed bool) {
	rest, kept, other := lease.Window(0), []lease.Lease{}, "" // rest is that of a hold that no pod has had
	for _, a := range w.choice.Addresses {
		for _, l := range leases[a] {
			left, isFor := l.Remaining(view.Now), w.isFor(l)
			isRight := l.State == lease.Bound || l.IsHold && left >= w.choice.Rest/2
			if w.owns(l) {
				rest, isRight = left, time.Duration(left-w.choice.Hold).Abs() <= requestInterval
			}
			if isFor && isRight {
				kept = append(kept, l)
			} else if !isFor && (l.State == lease.Bound || l.IsHold && left > 0) {
				other = a.String() + " " + l.Describe(w.request.Namespace, view.Now)
			}
		}
	}
	shown := w.shown()
	mayChoose := view.Limits.Of(w.request.Namespace).Choose
	text := fmt.Sprintf("namespace %s may not choose addresses; an administrator can allow it with the limit choose",
		w.request.Namespace)
	switch {
	case !isNamed && (mayChoose || rest == 0):
		w.states = nil // another node may have the addresses by now, or the manager is away: holds stay
	case len(w.states) > 0:
	case w.choice.Hold <= 0:
		w.setStates(ipamv1.RequestExpired, "Expired", "spec.for is over")
	case !mayChoose && !areCurrent:
	case !mayChoose && rest == 0:
		w.setStates(ipamv1.RequestRejected, "NotAllowed", text)
	case !mayChoose:
		w.choice.Hold = min(rest, w.choice.Rest)
		w.reserve = rest > w.choice.Hold
		end := view.Now.Wall.Add(time.Duration(w.choice.Hold))
		w.setStates(ipamv1.RequestHeld, "NotAllowed", text+"; it is held until "+lease.UntilText(end))
	case len(kept) == len(w.choice.Addresses):
		w.setStates(ipamv1.RequestHeld, "", "")
		for i, l := range kept {
			if l.State == lease.Bound {
				w.states[i].State = ipamv1.RequestBound
			}
		}
	case !w.request.Spec.Wait && shown.State == ipamv1.RequestRejected && shown.Reason == maintain.AddressInUse:
		w.setStates(ipamv1.RequestRejected, maintain.AddressInUse, shown.Message)
	case other != "":
		w.setStates(ipamv1.RequestRejected, maintain.AddressInUse, other)
	default:
		w.reserve = true
	}
}

// requestOf returns the name and the UID of the request in the owner of a lease. It reports false
// if the lease is not a hold that was made for a request and that no pod has had.
func requestOf(l lease.Lease) (name kube.Name, uid string, isOwned bool) {
	owner, isOwned := strings.CutPrefix(l.Owner, requestOwner)
	request, uid, _ := strings.Cut(owner, "/")
	return kube.Name{Namespace: l.Namespace, Name: request}, uid, isOwned && l.IsUnused()
}

// serveRequests holds the addresses of AddressRequests, ends the holds that no request asks for,
// and shows what became of the addresses. view has all leases of the node. It returns the time
// until the next pass, if no lease changes before, and an error after which other requests of the
// API server would fail as well.
func (p *Publisher) serveRequests(ctx context.Context, view maintain.NodeView, now time.Time) (time.Duration, error) {
	err := p.readRequests(ctx, view, now)
	if err != nil || len(p.requests) == 0 {
		return p.rereadAt.Sub(now), err
	}
	networks, err := p.Service.Networks(ctx, activeNetworks(p.Active()))
	if err != nil {
		p.pauses["reading the ranges"] = pause{err: err}
		return retry, nil
	}
	limits, _ := p.Limits.Get(kube.LimitsName.String())
	areCurrent := p.Limits.HasSynced() && p.Limits.IsComplete() && maps.Equal(limits, view.Limits)
	plan := planRequests(p.Name, p.requests, view, areCurrent, networks)
	// Addresses without a hold are reserved last, because the holds of a pod or of a namespace are
	// limited. A hold does not end before the wish that takes its address was tried.
	next, taken := p.reserve(ctx, plan.Wishes, true, networks, now), map[netip.Addr]bool{}
	for _, w := range plan.Wishes {
		for _, a := range w.choice.Addresses {
			taken[a] = taken[a] || w.takes && w.states == nil
		}
	}
	for why, leases := range plan.End {
		leases = slices.DeleteFunc(leases, func(l lease.Lease) bool { return taken[l.Address] })
		_ = p.attempt("ending holds of AddressRequests", now, func() error {
			return retention.End(ctx, p.Service.EndHolds, p.Log, leases, why)
		})
	}
	next = min(next, p.reserve(ctx, plan.Wishes, false, networks, now))
	for name := range p.requests {
		if err := p.showRequest(ctx, name, plan.Wishes, now); err != nil {
			return 0, err
		}
	}
	return next, nil
}

// reserve holds the addresses of those wishes whose choice is to be reserved, and that take an
// address from a hold that is to end, or of those that do not. It tries at most maxReserved, those
// first that were not refused before, and returns the time until it tries the others.
func (p *Publisher) reserve(ctx context.Context, wishes []*wish, take bool, networks []operation.Scope,
	now time.Time) time.Duration {
	tried := 0
	for _, isRefused := range []bool{false, true} {
		for _, w := range wishes {
			switch {
			case !w.reserve || w.takes != take || p.isRefused(w) != isRefused:
				continue
			case tried == maxReserved && isRefused:
				return retry
			case tried == maxReserved:
				return time.Millisecond
			}
			_ = p.attempt("holding "+w.entry.Addresses[0]+" for an AddressRequest", now, func() error {
				tried++
				_, err := p.Service.Reserve(ctx, networks, w.choice)
				if not := (*maintain.NotReserved)(nil); errors.As(err, &not) {
					w.setStates(ipamv1.RequestRejected, not.Reason, not.Error())
					return nil
				}
				return err
			})
		}
	}
	return p.rereadAt.Sub(now)
}

// isRefused reports whether the status of its request shows that a wish was refused, or cannot be
// written, so that nothing shows it.
func (p *Publisher) isRefused(w *wish) bool {
	_, failed := p.before[writingStatus(kube.Name{Namespace: w.request.Namespace, Name: w.request.Name})]
	return failed || w.shown().Reason != ""
}

// readRequests reads the AddressRequests that the manager names, once for each of their states, and
// every requestInterval the other ones of which the node has holds.
func (p *Publisher) readRequests(ctx context.Context, view maintain.NodeView, now time.Time) (err error) {
	refs := map[kube.Name]ipamv1.RequestReference{}
	for _, l := range view.Leases {
		if name, _, isOwned := requestOf(l); isOwned {
			refs[name] = ipamv1.RequestReference{}
		}
	}
	for _, ref := range p.Pool.Named().Requests {
		refs[kube.Name{Namespace: ref.Namespace, Name: ref.Name}] = ref
	}
	former, isOver := p.requests, !now.Before(p.rereadAt)
	if p.requests = map[kube.Name]namedRequest{}; isOver {
		p.rereadAt = now.Add(requestInterval)
	}
	for name, ref := range refs {
		r, isRead := former[name]
		if isRead && r.ReservationReference == ref.ReservationReference && !(isOver && ref.UID == "") {
			p.requests[name] = namedRequest{ref, r.object}
		} else if err == nil {
			err = p.attempt("reading AddressRequest "+name.String(), now, func() error {
				object := &ipamv1.AddressRequest{}
				switch err := kube.Get(ctx, p.Clients.IPAM, requestResource, name, "", object); {
				case kube.IsGone(err):
					object = nil
				case err != nil:
					return err
				}
				p.requests[name] = namedRequest{ref, trimRequest(object)}
				return nil
			})
		}
	}
	return err
}

// trimRequest returns an AddressRequest without what the agent does not need.
func trimRequest(r *ipamv1.AddressRequest) *ipamv1.AddressRequest {
	if r != nil {
		r.Annotations, r.Labels, r.ManagedFields, r.OwnerReferences = nil, nil, nil, nil
	}
	return r
}

// activeNetworks returns the networks that leasehold serves by the CNI configuration.
func activeNetworks(statuses []cniconf.Status) (out []operation.Scope) {
	for _, s := range statuses {
		if s.State == cniconf.Active && s.Pool != (lease.Pool{}) && len(s.Sets) > 0 {
			out = append(out, operation.Existing(s.Pool, s.Sets))
		}
	}
	return out
}

// showRequest writes the states of the node's addresses into the status of a request, and removes
// the node's other ones. What is not known stays as it is, and so do the states of others, and a
// message as long as its state and reason do. If somebody else has written the object meanwhile, it
// is read again.
func (p *Publisher) showRequest(ctx context.Context, name kube.Name, wishes []*wish, now time.Time) error {
	r := p.requests[name]
	var mine []ipamv1.RequestedAddress
	unknown := map[string]bool{}
	for _, w := range wishes {
		if w.request == r.object {
			mine = append(mine, w.states...)
			for _, a := range w.entry.Addresses {
				unknown[a] = len(w.states) == 0
			}
		}
	}
	if len(mine) == 0 {
		return nil
	}
	shown := r.object.Status.Addresses
	all := ipamv1.MergeStates(mine, shown, func(a ipamv1.RequestedAddress) bool {
		return a.NodeName != p.Name || unknown[a.Address]
	})
	if slices.EqualFunc(all, shown, func(a, b ipamv1.RequestedAddress) bool { a.Message = b.Message; return a == b }) {
		return nil
	}
	return p.attempt(writingStatus(name), now, func() error {
		next, got := *r.object, &ipamv1.AddressRequest{}
		next.APIVersion, next.Kind = ipamv1.GroupVersion.String(), "AddressRequest"
		next.Status.Addresses = all
		err := p.Clients.IPAM.Put().Timeout(kube.RequestTimeout).Namespace(name.Namespace).Resource(requestResource).
			Name(name.Name).SubResource("status").Body(&next).Do(ctx).Into(got)
		if apierrors.IsConflict(err) || kube.IsGone(err) {
			delete(p.requests, name)
			p.rereadAt = time.Time{}
			return nil
		}
		if r.object = trimRequest(got); err == nil {
			p.requests[name] = r
		}
		return err
	})
}

// writingStatus names a write of showRequest for attempt.
func writingStatus(request kube.Name) string {
	return "writing the status of AddressRequest " + request.String()
}
