package nodepools

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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	// maxShown is the largest number of statuses of AddressRequests that a pass writes.
	maxShown = 64
	// failedInterval is the time until the next pass if a status could not be written. That status
	// is tried again later each time, up to maxFailedInterval: its object may have megabytes.
	failedInterval    = 5 * time.Second
	maxFailedInterval = 10 * time.Minute
	// maxNamed is the largest number of entries that a NodeAddressPool names. With it the object
	// has at most 400 KiB.
	maxNamed = 2048
	// maxRanges is the largest number of ranges of a node that are known. Nodes have a few.
	maxRanges = 256
)

// nodeRange is a range of addresses of a node. Subnet is zero if it is not known. isLinked reports
// whether pods of other nodes may be on the same link.
type nodeRange struct {
	node       string
	start, end netip.Addr
	subnet     netip.Prefix
	isLinked   bool
}

func (n nodeRange) contains(a netip.Addr) bool { return !a.Less(n.start) && !n.end.Less(a) }

// mayContain reports whether a range, or its subnet, contains an address. The agent knows what an
// address is that is in a subnet and in no range.
func (n nodeRange) mayContain(a netip.Addr) bool { return n.contains(a) || n.subnet.Contains(a) }

// rangesOf returns the ranges that a NodeAddressPool shows, at most maxRanges.
func rangesOf(p *ipam.NodeAddressPool) (out []nodeRange) {
	for _, n := range p.Status.Networks {
		for _, shown := range n.Ranges {
			start, err1 := netip.ParseAddr(shown.Start)
			end, err2 := netip.ParseAddr(shown.End)
			subnet, _ := netip.ParsePrefix(shown.Subnet)
			isRange := err1 == nil && err2 == nil && start.BitLen() == end.BitLen() && !end.Less(start)
			if isRange && start.Zone()+end.Zone() == "" && len(out) < maxRanges {
				out = append(out, nodeRange{p.Name, start, end, subnet, n.Link != ""})
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

// have reports whether each of the addresses is in one of the ranges of a node, by a method of
// nodeRange.
func (x ranges) have(node string, addresses []netip.Addr, isIn func(nodeRange, netip.Addr) bool) bool {
	return !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		return !slices.ContainsFunc(x.of[node], func(n nodeRange) bool { return isIn(n, a) })
	})
}

// near returns a node that may have all addresses, of those whose ranges are beside the first one.
func (x ranges) near(addresses []netip.Addr) []string {
	i := sort.Search(len(x.sorted), func(i int) bool { return addresses[0].Less(x.sorted[i].start) })
	for _, n := range x.sorted[max(i-1, 0):min(i+1, len(x.sorted))] {
		if x.have(n.node, addresses, nodeRange.mayContain) {
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
		if n.contains(first) && !slices.Contains(nodes, n.node) && x.have(n.node, addresses, nodeRange.contains) {
			nodes = append(nodes, n.node)
		}
	}
	return nodes
}

// An addressRequest is what the manager needs of an AddressRequest.
type addressRequest struct {
	metav1.ObjectMeta
	entries []requestEntry
	// isOther reports whether the status has other addresses than the spec.
	isOther bool
}

// A requestEntry is an entry of an AddressRequest, and what its status shows of it.
type requestEntry struct {
	pod, reserveAs string
	node           string // that the entry names, or of the agent that has written its first state
	isNamed        bool   // by the entry
	addresses      []netip.Addr
	shown          []shownState // of each address
}

// A shownState is the state that the status shows of an address.
type shownState struct {
	isRepeated bool   // an entry before has the address, and its state is shown
	isAgents   bool   // the agent of the entry's node has written it
	isBound    bool   // it says so
	reason     string // of a state that the manager has written for this generation, otherwise ""
}

// managerStates are the states that the manager writes, by their reasons.
var managerStates = map[string]ipam.RequestState{
	"LimitsUnknown": ipam.RequestWaiting, "TooManyRequests": ipam.RequestWaiting, "NodeNotReady": ipam.RequestWaiting,
	"PodOnOtherNode": ipam.RequestWaiting, "NotAllowed": ipam.RequestRejected, "NoNode": ipam.RequestRejected,
	"SeveralNodes": ipam.RequestRejected,
}

// viewRequest returns the addressRequest of an AddressRequest.
func viewRequest(r *ipam.AddressRequest) *addressRequest {
	v, states, texts := &addressRequest{ObjectMeta: control.Identity(&r.ObjectMeta)}, statesOf(r), []string{}
	for _, e := range r.Spec.Entries {
		own := requestEntry{pod: e.PodName, reserveAs: e.Reservation, node: e.NodeName, isNamed: e.NodeName != ""}
		for i, text := range e.Addresses {
			if i == 0 && !own.isNamed {
				own.node = control.Intern(states[text].NodeName)
			}
			a, _ := netip.ParseAddr(text) // the zero address is in no range
			state := states[text]
			shown := shownState{isRepeated: slices.Contains(texts, text), isBound: state.State == ipam.RequestBound,
				isAgents: state.NodeName != "" && state.NodeName == own.node}
			if state.NodeName == "" && state.State == managerStates[state.Reason] &&
				state.ObservedGeneration == r.Generation {
				shown.reason = control.Intern(state.Reason)
			}
			own.addresses, own.shown = append(own.addresses, a.Unmap()), append(own.shown, shown)
			texts = append(texts, text)
		}
		if len(own.addresses) > 0 { // the CRD requires one
			v.entries = append(v.entries, own)
		}
	}
	slices.Sort(texts)
	v.isOther = !slices.EqualFunc(slices.Compact(texts), r.Status.Addresses,
		func(text string, a ipam.RequestedAddress) bool { return a.Address == text })
	return v
}

// requestPlan is what follows from the AddressRequests of the cluster.
type requestPlan struct {
	named map[string][]ipam.RequestReference // by node: what its agent should read
	shown []requestStates                    // the statuses to write, each namespace in turn
}

// requestStates are the states of all addresses of a request, one after the other. One with a node
// stays as it is.
type requestStates struct {
	*addressRequest
	states []ipam.RequestedAddress
}

// apply sets the status of an object to the states. The object has the spec of the request.
func (s requestStates) apply(r *ipam.AddressRequest) {
	shown, i := statesOf(r), 0
	for _, e := range r.Spec.Entries {
		for _, text := range e.Addresses {
			if s.states[i].Address = text; s.states[i].NodeName != "" {
				s.states[i] = shown[text]
			}
			i++
		}
	}
	r.Status.Addresses = ipam.MergeStates(s.states, nil, nil)
}

// planRequests returns what follows from the AddressRequests, the ranges of the nodes, the limits
// of namespaces and the reservations. areKnown reports whether the limits are: otherwise nothing is
// named. The status of a request for which isPaused reports true is not written.
//
// Each namespace is named in turn, and one that may not choose is not. Its unused holds end later:
// until then the agents' states stay.
func planRequests(requests []*addressRequest, pools []*nodePool, limits policy.Limits, areKnown bool,
	set *control.Reservations, isPaused func(*addressRequest) bool) (plan requestPlan) {
	plan.named = map[string][]ipam.RequestReference{}
	all, entries := newRanges(pools), map[string]int{}
	slices.SortFunc(requests, func(a, b *addressRequest) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	for _, r := range inTurn(requests, func(r *addressRequest) string { return r.Namespace }) {
		if r.DeletionTimestamp != nil {
			continue
		}
		found, states, isOther := map[string][]string{}, []ipam.RequestedAddress{}, r.isOther
		for _, e := range r.entries {
			node, own := "", ipam.RequestedAddress{Reason: "LimitsUnknown",
				Message: "the limits of namespaces, the ConfigMap leasehold-limits, have not been read"}
			if areKnown {
				node, own = nodeOf(r, e, all, limits.Of(r.Namespace).Choose, set)
			}
			if node != "" && (len(plan.named[node]) == ipam.MaxReservations || entries[node] >= maxNamed) {
				own.Reason, own.Message = "TooManyRequests", "node "+node+" has too many AddressRequests"
				node = ""
			} else if node != "" {
				entries[node]++
				found[node] = append(found[node], e.addresses[0].String())
			}
			own.State, own.Message = managerStates[own.Reason], kube.Cut(own.Message, ipam.MaxMessage)
			own.ObservedGeneration = r.Generation
			for i, shown := range e.shown {
				isKept := shown.isAgents && (e.node == node || node == "" && (!areKnown || isReserved(r, e, i, set)))
				state := own
				if isKept {
					state = ipam.RequestedAddress{NodeName: e.node}
				}
				states = append(states, state)
				isOther = isOther || !isKept && !shown.isRepeated && shown.reason != own.Reason
			}
		}
		ref := reference{Namespace: r.Namespace, Name: r.Name, UID: string(r.UID), Generation: r.Generation}
		for node, addresses := range found {
			plan.named[node] = append(plan.named[node],
				ipam.RequestReference{ReservationReference: ref, Addresses: addresses})
		}
		if isOther && len(plan.shown) <= maxShown && !isPaused(r) {
			plan.shown = append(plan.shown, requestStates{r, states})
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

// isReserved reports whether a reservation shows the same of an address of an entry as its state.
func isReserved(r *addressRequest, e requestEntry, i int, set *control.Reservations) bool {
	of := set.OfPod(r.Namespace + "/" + e.pod)
	if e.reserveAs != "" {
		of = set.OfName(control.NodeKey(control.NameKey(r.Namespace, e.reserveAs), e.node))
	}
	return slices.ContainsFunc(of, func(v *control.Reservation) bool {
		return v.Node == e.node && v.Bound == e.shown[i].isBound &&
			slices.Contains(strings.Split(v.Addresses, ","), e.addresses[i].String())
	})
}

// nodeOf returns the node whose agent is to be told of an entry, "" if there is none. It also
// returns the reason and the message of its addresses until that agent answers, or because of which
// there is none.
func nodeOf(r *addressRequest, e requestEntry, all ranges, mayChoose bool, set *control.Reservations,
) (string, ipam.RequestedAddress) {
	none := func(reason, format string, args ...any) (string, ipam.RequestedAddress) {
		return "", ipam.RequestedAddress{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	if !mayChoose {
		return none("NotAllowed",
			"namespace %s may not choose addresses; an administrator can allow it with the limit choose", r.Namespace)
	}
	nodes := []string{e.node}
	if !all.have(e.node, e.addresses, nodeRange.contains) && !e.isNamed {
		if nodes = all.nodes(e.addresses); len(nodes) == 0 {
			nodes = all.near(e.addresses)
		}
	}
	switch {
	case len(nodes) == 0:
		return none("NoNode", "no node has ranges that contain %s", e.addresses)
	case !all.have(nodes[0], e.addresses, nodeRange.mayContain):
		return none("NoNode", "the ranges of node %s do not contain %s", e.node, e.addresses)
	case len(nodes) > 1:
		return none("SeveralNodes", "the ranges of several nodes contain %s, such as %s and %s; "+
			"name one in nodeName", e.addresses, nodes[0], nodes[1])
	}
	for _, of := range set.OfPod(r.Namespace + "/" + e.pod) {
		if of.Node != nodes[0] && of.Bound && of.Confirmed {
			return none("PodOnOtherNode", "the pod runs on node %s, and node %s has the address; "+
				"delete the pod and release its addresses", of.Node, nodes[0])
		}
	}
	_, state := none("NodeNotReady", "the agent of node %s has not answered yet", nodes[0])
	return nodes[0], state
}

// nameRequests enqueues the nodes whose agents should read other AddressRequests than before, and
// writes statuses. As long as there are requests, it runs at intervals, because ranges and pods may
// have changed.
func (r *specReconciler) nameRequests(ctx context.Context) (reconcile.Result, error) {
	requests, areKnown := r.requests.List(), r.limits.HasSynced() && r.limits.IsComplete()
	isDone := len(r.named) == 0 && (r.named != nil || !areKnown) // a former leader may have named some
	if !r.requests.HasSynced() || len(requests) == 0 && isDone {
		return reconcile.Result{}, nil // an AddressRequest starts a pass, and so do limits
	}
	limits, _ := r.limits.Get(kube.LimitsName.String())
	pools, again := r.pools.List(), checkInterval
	key := func(q *addressRequest) string { return string(q.UID) + " " + q.ResourceVersion }
	plan := planRequests(requests, pools, limits, areKnown, r.set, func(q *addressRequest) bool {
		isPaused := r.unwritten.IsInBackOffSinceUpdate(key(q), r.now())
		if isPaused {
			again = failedInterval
		}
		return isPaused
	})
	if areKnown {
		r.named = plan.named
	}
	for _, p := range pools {
		if r.named != nil && p.requests != digestOf(r.named[p.node]) {
			r.queue.Add(control.RequestFor(p.node))
		}
	}
	if len(plan.shown) > maxShown {
		again = nameDelay
	}
	var errs []error
	for _, want := range plan.shown[:min(len(plan.shown), maxShown)] {
		if err := r.show(ctx, want); err != nil {
			r.unwritten.Next(key(want.addressRequest), r.now())
			errs = append(errs, err)
		}
	}
	r.unwritten.GC()
	if err := errors.Join(errs...); err != nil { // to return it would delay the other statuses
		again = failedInterval
		log.FromContext(ctx).Error(err, "writing statuses of AddressRequests failed")
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// show writes the status of a request. It reads the request, because a view lacks what the agents
// have written. If it has changed, the next pass shows it.
func (r *specReconciler) show(ctx context.Context, want requestStates) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var now ipam.AddressRequest
	err := r.reader.Get(ctx, client.ObjectKey{Namespace: want.Namespace, Name: want.Name}, &now)
	if err != nil || now.ResourceVersion != want.ResourceVersion {
		return client.IgnoreNotFound(err)
	}
	want.apply(&now)
	return control.IgnoreRace(r.client.Status().Update(ctx, &now))
}
