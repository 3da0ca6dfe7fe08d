package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	// maxShown is the largest number of statuses of AddressRequests that a pass writes.
	maxShown = 64
	// maxNamed is the largest number of entries that a NodeAddressPool names. With it the object
	// has at most 400 KiB.
	maxNamed = 2048
)

// nodeRange is a range of addresses of a node. Subnet is zero if it is not known.
type nodeRange struct {
	node       string
	start, end netip.Addr
	subnet     netip.Prefix
}

func (n nodeRange) contains(a netip.Addr) bool { return !a.Less(n.start) && !n.end.Less(a) }

// rangesOf returns the ranges that a NodeAddressPool shows.
func rangesOf(p *ipam.NodeAddressPool) (out []nodeRange) {
	for _, n := range p.Status.Networks {
		for _, shown := range n.Ranges {
			start, err1 := netip.ParseAddr(shown.Start)
			end, err2 := netip.ParseAddr(shown.End)
			subnet, _ := netip.ParsePrefix(shown.Subnet)
			if err1 == nil && err2 == nil {
				out = append(out, nodeRange{p.Name, start, end, subnet})
			}
		}
	}
	return out
}

// ranges are the ranges of all nodes.
type ranges struct {
	of     map[string][]nodeRange
	sorted []nodeRange  // by start
	ends   []netip.Addr // the last address of those up to here
}

func newRanges(pools []*nodePool) (x ranges) {
	x.of = map[string][]nodeRange{}
	for _, p := range pools {
		x.of[p.node] = p.ranges
		x.sorted = append(x.sorted, p.ranges...)
	}
	slices.SortFunc(x.sorted, func(a, b nodeRange) int {
		return cmp.Or(a.start.Compare(b.start), cmp.Compare(a.node, b.node))
	})
	var last netip.Addr
	for _, n := range x.sorted {
		if last.Less(n.end) {
			last = n.end
		}
		x.ends = append(x.ends, last)
	}
	return x
}

// has reports whether the ranges of a node contain all addresses.
func (x ranges) has(node string, addresses []netip.Addr) bool {
	return !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return !slices.ContainsFunc(x.of[node], func(n nodeRange) bool { return n.contains(a) })
	})
}

// mayHave reports whether the ranges of a node, or their subnets, contain all addresses. The agent
// knows what an address is that is in a subnet and in no range.
func (x ranges) mayHave(node string, addresses []netip.Addr) bool {
	return !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return !slices.ContainsFunc(x.of[node], func(n nodeRange) bool { return n.contains(a) || n.subnet.Contains(a) })
	})
}

// near returns a node that may have all addresses, of those whose ranges are beside the first one.
func (x ranges) near(addresses []netip.Addr) []string {
	i := sort.Search(len(x.sorted), func(i int) bool { return addresses[0].Less(x.sorted[i].start) })
	for _, n := range x.sorted[max(i-1, 0):min(i+1, len(x.sorted))] {
		if x.mayHave(n.node, addresses) {
			return []string{n.node}
		}
	}
	return nil
}

// nodes returns nodes whose ranges contain all addresses, at most two.
func (x ranges) nodes(addresses []netip.Addr) (nodes []string) {
	first := addresses[0]
	i := sort.Search(len(x.sorted), func(i int) bool { return first.Less(x.sorted[i].start) })
	for i--; i >= 0 && !x.ends[i].Less(first) && len(nodes) < 2; i-- {
		n := x.sorted[i]
		if n.contains(first) && !slices.Contains(nodes, n.node) && x.has(n.node, addresses) {
			nodes = append(nodes, n.node)
		}
	}
	return nodes
}

// viewRequest returns an AddressRequest with what the manager needs of it.
func viewRequest(r *ipam.AddressRequest) *ipam.AddressRequest {
	v := &ipam.AddressRequest{ObjectMeta: Identity(&r.ObjectMeta), Spec: r.Spec, Status: r.Status}
	for i := range v.Status.Addresses {
		v.Status.Addresses[i].Message = ""
	}
	return v
}

// requestPlan is what follows from the AddressRequests of the cluster.
type requestPlan struct {
	named map[string][]ipam.RequestReference // by node: what its agent should read
	shown []*ipam.AddressRequest             // the statuses to write, each namespace in turn
}

// planRequests returns what follows from the AddressRequests, the ranges of the nodes, the limits
// of namespaces and the reservations. areKnown reports whether the limits are: otherwise nothing is
// named.
//
// Each namespace is named in turn, and one that may not choose is not. Its unused holds end later:
// until then the agents' states stay.
func planRequests(requests []*ipam.AddressRequest, pools []*nodePool, limits policy.Limits, areKnown bool,
	set *Reservations) (plan requestPlan) {
	plan.named = map[string][]ipam.RequestReference{}
	all, entries := newRanges(pools), map[string]int{}
	slices.SortFunc(requests, func(a, b *ipam.AddressRequest) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	for _, r := range inTurn(requests, func(r *ipam.AddressRequest) string { return r.Namespace }) {
		if r.DeletionTimestamp != nil {
			continue
		}
		found, states, shown := map[string][]string{}, []ipam.RequestedAddress{}, statesOf(r)
		for _, e := range r.Spec.Entries {
			node, own := "", ipam.RequestedAddress{State: ipam.RequestWaiting, Reason: "LimitsUnknown",
				Message: "the limits of namespaces, the ConfigMap leasehold-limits, have not been read"}
			if areKnown {
				node, own = nodeOf(r, e, shown[e.Addresses[0]].NodeName, all, limits.Of(r.Namespace).Choose, set)
			}
			if node != "" && (len(plan.named[node]) == ipam.MaxReservations || entries[node] >= maxNamed) {
				own.Reason, own.Message = "TooManyRequests", "node "+node+" has too many AddressRequests"
				node = ""
			} else if node != "" {
				entries[node]++
				found[node] = append(found[node], e.Addresses[0])
			}
			own.Message, own.ObservedGeneration = kube.Cut(own.Message, ipam.MaxMessage), r.Generation
			for _, own.Address = range e.Addresses {
				state := shown[own.Address]
				stays := node == "" && (!areKnown || isReserved(r, e, state, set))
				if state.NodeName == "" || state.NodeName != node && !stays {
					state = own
				}
				states = append(states, state)
			}
		}
		ref := reference{Namespace: r.Namespace, Name: r.Name, UID: string(r.UID), Generation: r.Generation}
		for node, addresses := range found {
			plan.named[node] = append(plan.named[node],
				ipam.RequestReference{ReservationReference: ref, Addresses: addresses})
		}
		states = ipam.MergeStates(states, nil, nil)
		isSame := func(a, b ipam.RequestedAddress) bool { a.Message = ""; return a == b }
		if len(plan.shown) <= maxShown && !slices.EqualFunc(states, r.Status.Addresses, isSame) {
			plan.shown = append(plan.shown, &ipam.AddressRequest{ObjectMeta: r.ObjectMeta,
				Status: ipam.AddressRequestStatus{Addresses: states}})
		}
	}
	return plan
}

// statesOf returns the states in the status of a request, by address.
func statesOf(r *ipam.AddressRequest) map[string]ipam.RequestedAddress {
	states := map[string]ipam.RequestedAddress{}
	for _, a := range r.Status.Addresses {
		states[a.Address] = a
	}
	return states
}

// isReserved reports whether a reservation shows the same of an address as its state in a request.
func isReserved(r *ipam.AddressRequest, e ipam.AddressRequestEntry, shown ipam.RequestedAddress,
	set *Reservations) bool {
	of := set.OfPod(r.Namespace + "/" + e.PodName)
	if e.Reservation != "" {
		of = set.OfName(NodeKey(NameKey(r.Namespace, e.Reservation), shown.NodeName))
	}
	a, err := netip.ParseAddr(shown.Address)
	return err == nil && slices.ContainsFunc(of, func(v *Reservation) bool {
		return v.Node == shown.NodeName && v.Bound == (shown.State == ipam.RequestBound) &&
			slices.Contains(strings.Split(v.Addresses, ","), a.Unmap().String())
	})
}

// nodeOf returns the node whose agent is to be told of an entry, "" if there is none, and the state
// of the addresses until it answers, or because of which there is none. before is the node that was
// told before.
func nodeOf(r *ipam.AddressRequest, e ipam.AddressRequestEntry, before string, all ranges, mayChoose bool,
	set *Reservations) (string, ipam.RequestedAddress) {
	var addresses []netip.Addr
	for _, text := range e.Addresses {
		a, _ := netip.ParseAddr(text) // the zero address is in no range
		addresses = append(addresses, a.Unmap())
	}
	none := func(state ipam.RequestState, reason, format string, args ...any) (string, ipam.RequestedAddress) {
		return "", ipam.RequestedAddress{State: state, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	nodes := []string{cmp.Or(e.NodeName, before)}
	if !all.has(nodes[0], addresses) && e.NodeName == "" {
		if nodes = all.nodes(addresses); len(nodes) == 0 {
			nodes = all.near(addresses)
		}
	}
	switch {
	case !mayChoose:
		return none(ipam.RequestRejected, "NotAllowed",
			"namespace %s may not choose addresses; an administrator can allow it with the limit choose", r.Namespace)
	case len(nodes) == 0:
		return none(ipam.RequestRejected, "NoNode", "no node has ranges that contain %s", e.Addresses)
	case !all.mayHave(nodes[0], addresses):
		return none(ipam.RequestRejected, "NoNode", "the ranges of node %s do not contain %s", e.NodeName, e.Addresses)
	case len(nodes) > 1:
		return none(ipam.RequestRejected, "SeveralNodes", "the ranges of several nodes contain %s, such as %s and %s; "+
			"name one in nodeName", e.Addresses, nodes[0], nodes[1])
	}
	for _, of := range set.OfPod(r.Namespace + "/" + e.PodName) {
		if of.Node != nodes[0] && of.Bound && of.Confirmed {
			return none(ipam.RequestWaiting, "PodOnOtherNode", "the pod runs on node %s, and node %s has the address; "+
				"delete the pod and release its addresses", of.Node, nodes[0])
		}
	}
	_, state := none(ipam.RequestWaiting, "NodeNotReady", "the agent of node %s has not answered yet", nodes[0])
	return nodes[0], state
}

// nameRequests enqueues the nodes whose agents should read other AddressRequests than before, and
// writes statuses. As long as there are requests, it runs at intervals, because ranges and pods may
// have changed.
func (r *poolReconciler) nameRequests(ctx context.Context) (reconcile.Result, error) {
	requests := r.requests.List()
	if !r.requests.HasSynced() || len(requests) == 0 && len(r.named) == 0 {
		return reconcile.Result{}, nil // an AddressRequest starts a pass
	}
	limits, _ := r.limits.Get(kube.LimitsName.String())
	pools := r.pools.List()
	areKnown := r.limits.HasSynced() && r.limits.IsComplete()
	plan := planRequests(requests, pools, limits, areKnown, r.set)
	if areKnown {
		r.named = plan.named
	}
	for _, p := range pools {
		if r.named != nil && !equality.Semantic.DeepEqual(p.spec.Requests, r.named[p.node]) {
			r.queue.Add(RequestFor(p.node))
		}
	}
	var errs []error
	for _, want := range plan.shown[:min(len(plan.shown), maxShown)] {
		errs = append(errs, r.show(ctx, want))
	}
	if len(plan.shown) > maxShown {
		return reconcile.Result{RequeueAfter: nameDelay}, errors.Join(errs...)
	}
	return reconcile.Result{RequeueAfter: checkInterval}, errors.Join(errs...)
}

// show writes the status of a request. It reads the request, because a view lacks the messages of
// the agents. If it has changed, the next pass shows it.
func (r *poolReconciler) show(ctx context.Context, want *ipam.AddressRequest) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var now ipam.AddressRequest
	err := r.reader.Get(ctx, client.ObjectKeyFromObject(want), &now)
	if err != nil || now.ResourceVersion != want.ResourceVersion {
		return client.IgnoreNotFound(err)
	}
	shown := statesOf(&now)
	for i, a := range want.Status.Addresses {
		if a.NodeName != "" {
			want.Status.Addresses[i] = shown[a.Address]
		}
	}
	now.Status = want.Status
	return IgnoreRace(r.client.Status().Update(ctx, &now))
}
