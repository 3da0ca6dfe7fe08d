package control

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

// nodeRange is a range of addresses of a node. Subnet is zero if it is not known.
type nodeRange struct {
	node       string
	start, end netip.Addr
	subnet     netip.Prefix
}

func (n nodeRange) contains(a netip.Addr) bool { return !a.Less(n.start) && !n.end.Less(a) }

// nameRequests finds the node of each requested address, by the ranges in the NodeAddressPools, and
// enqueues the nodes whose agents should read other requests than before: an agent holds the
// address. Addresses without a node get a state that says why. As long as there are requests,
// nameRequests runs at intervals, because ranges and pods may have changed.
func (r *poolReconciler) nameRequests(ctx context.Context) (reconcile.Result, error) {
	if !r.requests.HasSynced() {
		return reconcile.Result{RequeueAfter: checkInterval}, nil // an AddressRequest starts a pass earlier
	}
	requests := r.requests.List()
	slices.SortFunc(requests, func(a, b *ipam.AddressRequest) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	var ranges []nodeRange
	for _, p := range r.pools.List() {
		ranges = append(ranges, p.ranges...)
	}
	r.named = map[string][]ipam.RequestReference{}
	var problem error
	for _, request := range requests {
		if request.DeletionTimestamp != nil {
			continue
		}
		addresses, without := r.assign(request, ranges)
		for node, list := range addresses {
			if len(r.named[node]) < ipam.MaxReservations {
				ref := reference{Namespace: request.Namespace, Name: request.Name, UID: string(request.UID),
					Generation: request.Generation}
				r.named[node] = append(r.named[node], ipam.RequestReference{ReservationReference: ref,
					Addresses: list[:min(len(list), ipam.MaxRequested)]})
			}
		}
		problem = cmp.Or(problem, r.show(ctx, request, without))
	}
	for _, p := range r.pools.List() {
		if !equality.Semantic.DeepEqual(p.spec.Requests, r.named[p.node]) {
			r.queue.Add(RequestFor(p.node))
		}
	}
	if problem != nil || len(requests) == 0 {
		return reconcile.Result{}, problem
	}
	return reconcile.Result{RequeueAfter: checkInterval}, nil
}

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

// assign returns the addresses of a request by the node whose agent should hold them, and the
// states of those that have no node.
func (r *poolReconciler) assign(request *ipam.AddressRequest, ranges []nodeRange) (map[string][]string,
	[]ipam.RequestedAddress) {
	byNode, without := map[string][]string{}, []ipam.RequestedAddress{}
	for _, e := range request.Spec.Entries {
		node, state, reason, message := r.nodeOf(request.Namespace, e, ranges)
		if state == "" {
			byNode[node] = append(byNode[node], e.Addresses...)
			continue
		}
		for _, a := range e.Addresses {
			without = append(without, ipam.RequestedAddress{Address: a, State: state, Reason: reason, Message: message,
				ObservedGeneration: request.Generation})
		}
	}
	return byNode, without
}

// nodeOf returns the node that has all addresses of an entry, or the state of the entry and its
// reason if there is none. An address that is in the subnet of a range, but in no range, is left to
// an agent, which knows what it is.
func (r *poolReconciler) nodeOf(namespace string, e ipam.AddressRequestEntry, ranges []nodeRange) (node string,
	state ipam.RequestState, reason, message string) {
	candidates := nodesOf(e.Addresses, ranges, nodeRange.contains)
	if len(candidates) == 0 {
		candidates = nodesOf(e.Addresses, ranges, func(n nodeRange, a netip.Addr) bool {
			return n.subnet.Contains(a) || n.contains(a)
		})
		candidates = candidates[:min(len(candidates), 1)]
	}
	switch {
	case e.NodeName != "" && !slices.Contains(candidates, e.NodeName):
		return "", ipam.RequestRejected, "NoNode", kube.Cut(fmt.Sprintf(
			"the ranges of node %s do not contain %s", e.NodeName, joined(e.Addresses)), ipam.MaxMessage)
	case e.NodeName != "":
		node = e.NodeName
	case len(candidates) == 0:
		return "", ipam.RequestRejected, "NoNode",
			fmt.Sprintf("no node has ranges that contain %s", joined(e.Addresses))
	case len(candidates) > 1:
		return "", ipam.RequestRejected, "SeveralNodes", kube.Cut(fmt.Sprintf(
			"the ranges of several nodes contain %s, such as %s and %s; name one in nodeName", joined(e.Addresses),
			candidates[0], candidates[1]), ipam.MaxMessage)
	default:
		node = candidates[0]
	}
	for _, of := range r.set.OfPod(namespace + "/" + e.PodName) {
		if of.Node != node && of.Bound && of.Confirmed {
			return "", ipam.RequestWaiting, "PodOnOtherNode", kube.Cut(fmt.Sprintf(
				"the pod runs on node %s, and node %s has the address; delete the pod and release its addresses",
				of.Node, node), ipam.MaxMessage)
		}
	}
	return node, "", "", ""
}

// joined returns addresses as a text of limited length.
func joined(addresses []string) string { return kube.Cut(fmt.Sprint(addresses), 256) }

// nodesOf returns the nodes each of which has, for every address, a range that matches.
func nodesOf(addresses []string, ranges []nodeRange, matches func(nodeRange, netip.Addr) bool) (nodes []string) {
	for i, text := range addresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil
		}
		a = a.Unmap()
		var having []string
		for _, n := range ranges {
			if matches(n, a) && (i == 0 || slices.Contains(nodes, n.node)) {
				having = append(having, n.node)
			}
		}
		slices.Sort(having)
		nodes = slices.Compact(having)
	}
	return nodes
}

// show writes the states of the addresses without a node into the status of a request, and removes
// those of addresses that are not in the spec. The states that agents have written stay.
func (r *poolReconciler) show(ctx context.Context, request *ipam.AddressRequest,
	without []ipam.RequestedAddress) error {
	shown := ipam.MergeStates(without, request.Status.Addresses, func(a ipam.RequestedAddress) bool {
		isListed := func(e ipam.AddressRequestEntry) bool { return slices.Contains(e.Addresses, a.Address) }
		return a.NodeName != "" && slices.ContainsFunc(request.Spec.Entries, isListed)
	})
	if equality.Semantic.DeepEqual(shown, request.Status.Addresses) {
		return nil
	}
	next := request.DeepCopy()
	next.Status.Addresses = shown
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return IgnoreRace(r.client.Status().Update(ctx, next))
}
