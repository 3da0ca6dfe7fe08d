package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	requestResource = "addressrequests"
	// requestInterval is how often requests are read again and their addresses are compared, if
	// neither the node's leases nor what the manager names have changed.
	requestInterval = time.Minute
	// requestRest is how long at least the hold of a pod that had the address lasts while a request
	// names the address. It is not longer, because the pod's own window counts without the request.
	requestRest = 10 * time.Minute
	// requestOwner begins lease.Lease.Owner of a hold that no pod has had: then come the name and
	// the UID of the request.
	requestOwner = "AddressRequest/"
)

// serveRequests holds the addresses of the AddressRequests that the manager names, and ends holds
// that no pod has had and whose request does not exist any more. view has all leases of the node.
// serveRequests returns the time until the next pass.
func (p *Publisher) serveRequests(ctx context.Context, view ipam.NodeView, now time.Time) (time.Duration, error) {
	named := p.Pool.Named().Requests
	if len(named) == 0 && !slices.ContainsFunc(view.Leases, isOfRequest) {
		return 0, nil
	}
	if stamp := stampOf(named, view); stamp != p.stamp {
		p.stamp, p.servedAt = stamp, time.Time{}
	}
	if rest := requestInterval - now.Sub(p.servedAt); rest > 0 {
		return rest, nil
	}
	networks, err := p.Service.Networks(ctx, activeNetworks(p.Active()))
	if err != nil {
		return 0, err
	}
	p.servedAt = now
	var errs []error
	for _, ref := range named {
		errs = append(errs, p.serve(ctx, ref, networks, view))
	}
	for _, l := range view.Leases {
		isNamed := func(ref ipamv1.RequestReference) bool {
			return ref.Namespace == l.Namespace && ownerOfRequest(ref.Name, ref.UID) == l.Owner &&
				slices.Contains(ref.Addresses, l.Address.String())
		}
		if isOfRequest(l) && !slices.ContainsFunc(named, isNamed) {
			errs = append(errs, p.endUnrequested(ctx, l))
		}
	}
	return requestInterval, errors.Join(errs...)
}

// stampOf returns a text that changes when the manager names something else, a lease changes its
// state or its key, or a limit does.
func stampOf(named []ipamv1.RequestReference, view ipam.NodeView) string {
	var b strings.Builder
	fmt.Fprint(&b, named, view.Limits)
	for _, l := range view.Leases {
		fmt.Fprint(&b, l.Place(), l.State, l.Firm, l.Key(), l.Lapsed(view.Now), ";")
	}
	return b.String()
}

func ownerOfRequest(name, uid string) string { return requestOwner + name + "/" + uid }

// isOfRequest reports whether a lease is a hold that was made for a request and that no pod has
// had.
func isOfRequest(l lease.Lease) bool {
	return ipam.IsUnused(l) && strings.HasPrefix(l.Owner, requestOwner)
}

// serve holds the addresses of one request that are of this node, and shows their states.
func (p *Publisher) serve(ctx context.Context, ref ipamv1.RequestReference, networks []ipam.Network,
	view ipam.NodeView) error {
	r, err := p.readRequest(ctx, ref.Namespace, ref.Name)
	if apierrors.IsNotFound(err) || err == nil && (string(r.UID) != ref.UID || r.DeletionTimestamp != nil) {
		return nil // endUnrequested ends its holds
	}
	if err != nil {
		return fmt.Errorf("reading an AddressRequest: %w", err)
	}
	var mine []ipamv1.RequestedAddress
	for _, e := range r.Spec.Entries {
		// The manager decides for each entry, and may not know the object as it is now.
		if (e.NodeName == "" || e.NodeName == p.Node) && slices.Contains(ref.Addresses, e.Addresses[0]) {
			mine = append(mine, p.hold(ctx, r, e, networks, view)...)
		}
	}
	return p.showRequest(ctx, r, mine)
}

// activeNetworks returns the networks that leasehold serves by the CNI configuration.
func activeNetworks(statuses []cniconf.Status) (out []ipam.Network) {
	for _, s := range statuses {
		if s.State == cniconf.Active && s.Pool != (lease.Pool{}) && len(s.Sets) > 0 {
			out = append(out, ipam.Network{Pool: s.Pool, Sets: s.Sets})
		}
	}
	return out
}

// hold holds the addresses of an entry, all of them or none, and returns their states.
func (p *Publisher) hold(ctx context.Context, r *ipamv1.AddressRequest, e ipamv1.AddressRequestEntry,
	networks []ipam.Network, view ipam.NodeView) (out []ipamv1.RequestedAddress) {
	states := func(state ipamv1.RequestState, reason, message string) []ipamv1.RequestedAddress {
		out = nil
		for _, a := range e.Addresses {
			out = append(out, ipamv1.RequestedAddress{Address: a, NodeName: p.Node, State: state, Reason: reason,
				Message: kube.Cut(message, ipamv1.MaxMessage), ObservedGeneration: r.Generation})
		}
		return out
	}
	choice := ipam.Choice{Namespace: r.Namespace, Name: e.PodName, Reservation: e.Reservation,
		IfName: cmp.Or(e.Interface, "eth0"), Rest: lease.Window(requestRest),
		Owner: ownerOfRequest(r.Name, string(r.UID)), Viewer: r.Namespace}
	window, err := policy.ParseWindow(cmp.Or(r.Spec.For, lease.Forever.String()))
	choice.Window, choice.Hold = window, window
	if window != lease.Forever {
		choice.Hold = window - lease.Window(view.Now.Wall.Sub(r.CreationTimestamp.Time))
	}
	for _, text := range e.Addresses {
		addr, parseErr := netip.ParseAddr(text)
		err = errors.Join(err, parseErr)
		choice.Addresses = append(choice.Addresses, addr.Unmap())
	}
	// Whether the request shows that its address was in use, for the spec as it is now.
	before := slices.IndexFunc(r.Status.Addresses, func(a ipamv1.RequestedAddress) bool {
		return a.Address == e.Addresses[0] && a.NodeName == p.Node && a.State == ipamv1.RequestRejected &&
			a.Reason == ipam.AddressInUse && a.ObservedGeneration == r.Generation
	})
	isName := lease.IsPodName(e.PodName) && e.Reservation == "" || lease.IsReservation(e.Reservation) && e.PodName == ""
	switch {
	case !view.Limits.Of(r.Namespace).Choose:
		return states(ipamv1.RequestRejected, "NotAllowed", fmt.Sprintf(
			"namespace %s may not choose addresses; an administrator can allow it with the limit choose", r.Namespace))
	case err != nil || !isName || !hostlocal.IsIfName(choice.IfName):
		return states(ipamv1.RequestRejected, ipam.InvalidAddress,
			"the entry has no valid name, interface or address")
	case choice.Hold <= 0:
		return states(ipamv1.RequestExpired, "Expired", "spec.for is over")
	case !r.Spec.Wait && before >= 0:
		return states(ipamv1.RequestRejected, ipam.AddressInUse, r.Status.Addresses[before].Message)
	}
	leases, err := p.Service.Reserve(ctx, networks, choice)
	var refused *ipam.NotReserved
	switch {
	case errors.As(err, &refused) && refused.Reason == ipam.AddressInUse && r.Spec.Wait:
		return states(ipamv1.RequestWaiting, refused.Reason, refused.Error())
	case errors.As(err, &refused):
		return states(ipamv1.RequestRejected, refused.Reason, refused.Error())
	case err != nil:
		return states(ipamv1.RequestWaiting, "Error", err.Error())
	}
	states(ipamv1.RequestHeld, "", "")
	for i, l := range leases {
		if l.State == lease.Bound {
			out[i].State = ipamv1.RequestBound
		}
	}
	return out
}

// endUnrequested ends a hold that no pod has had, if its request does not exist any more, or does
// not have the address. That a request is not named is no reason: the manager may be away.
func (p *Publisher) endUnrequested(ctx context.Context, l lease.Lease) error {
	name, uid, _ := strings.Cut(strings.TrimPrefix(l.Owner, requestOwner), "/")
	r, err := p.readRequest(ctx, l.Namespace, name)
	if err != nil && !kube.IsGone(err) {
		return fmt.Errorf("reading the AddressRequest of a hold: %w", err)
	}
	isListed := func(e ipamv1.AddressRequestEntry) bool {
		return (e.PodName == l.Name || e.Reservation != "" && e.Reservation == l.Reservation) &&
			(e.NodeName == "" || e.NodeName == p.Node) && slices.ContainsFunc(e.Addresses, func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err == nil && a.Unmap() == l.Address
		})
	}
	if err == nil && string(r.UID) == uid && slices.ContainsFunc(r.Spec.Entries, isListed) {
		return nil
	}
	return retention.End(ctx, p.Service.EndHolds, p.Log, []lease.Lease{l}, "its AddressRequest was deleted or changed")
}

// readRequest reads an AddressRequest from etcd.
func (p *Publisher) readRequest(ctx context.Context, namespace, name string) (*ipamv1.AddressRequest, error) {
	r := &ipamv1.AddressRequest{}
	return r, kube.Get(ctx, p.Clients.IPAM, requestResource, kube.Name{Namespace: namespace, Name: name}, "", r)
}

// showRequest writes the states of the node's addresses into the status of a request, and removes
// the node's other ones. The states of other addresses stay. If another one has written the object
// meanwhile, the next pass writes.
func (p *Publisher) showRequest(ctx context.Context, r *ipamv1.AddressRequest, mine []ipamv1.RequestedAddress) error {
	all := ipamv1.MergeStates(mine, r.Status.Addresses, func(a ipamv1.RequestedAddress) bool {
		return a.NodeName != p.Node
	})
	if equality.Semantic.DeepEqual(all, r.Status.Addresses) {
		return nil
	}
	next := r.DeepCopy()
	next.APIVersion, next.Kind = ipamv1.GroupVersion.String(), "AddressRequest"
	next.Status.Addresses = all
	err := p.Clients.IPAM.Put().Timeout(kube.RequestTimeout).Namespace(r.Namespace).Resource(requestResource).
		Name(r.Name).SubResource("status").Body(next).Do(ctx).Error()
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		p.stamp = ""
		return nil
	}
	return err
}
