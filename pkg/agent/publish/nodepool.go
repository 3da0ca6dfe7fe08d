package publish

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// nodePoolInterval is the least time between two writes of the NodeAddressPool.
	nodePoolInterval = 30 * time.Second
	// updatingPool names the update in the errors of the Publisher.
	updatingPool = "updating the NodeAddressPool"
	// maxNetworks is the largest number of networks that the CRD accepts.
	maxNetworks = 256
)

var poolKind = kind{"NodeAddressPool", ipamv1.NodeAddressPoolResource.Resource}

// Pool is the NodeAddressPool of a node, in which the manager names the reservations that the agent
// should read.
type Pool struct {
	kube.NodeInformer[*ipamv1.NodeAddressPool]
	node string
}

// NewPool returns the Pool of a node. It is empty until Run has received the object.
func NewPool(client rest.Interface, node string) *Pool {
	i := kube.NewInformer(viewPool, nil)
	return &Pool{kube.NodeInformer[*ipamv1.NodeAddressPool]{Informer: i, What: "address pool of this node",
		Period:    5 * time.Minute,
		ListWatch: i.ListWatch(client, poolKind.resource, metav1.NamespaceAll, "", "metadata.name="+node)}, node}
}

// viewPool returns the part of the object that the agent uses.
func viewPool(p *ipamv1.NodeAddressPool) *ipamv1.NodeAddressPool {
	v := &ipamv1.NodeAddressPool{Spec: p.Spec, Status: p.Status}
	v.Name, v.UID, v.ResourceVersion = p.Name, p.UID, p.ResourceVersion
	for _, o := range p.OwnerReferences {
		if owners := (nodeIdentity{p.Name, string(o.UID)}).owners(); o == owners[0] && len(o.UID) <= kube.MaxUID {
			v.OwnerReferences = owners
		}
	}
	return v
}

// Object returns the object, nil if it does not exist or is not known yet.
func (p *Pool) Object() *ipamv1.NodeAddressPool {
	object, _ := p.Get(p.node)
	return object
}

// Named returns the reservations and requests that the manager names.
func (p *Pool) Named() (named ipamv1.NodeAddressPoolSpec) {
	if object := p.Object(); object != nil {
		named = object.Spec
	}
	return named
}

// nodePool is what the Publisher remembers of the NodeAddressPool of the node: the number of free,
// bound and held addresses, and whether leasehold serves the node's networks. The object has the
// name of the node and is owned by the node.
type nodePool struct {
	checkAt time.Time                    // of the next check
	wroteAt time.Time                    // when the status was last written
	active  []cniconf.Status             // the result of Active at the last check
	applied ipamv1.NodeAddressPoolStatus // as last written, which gave the object the next version
	version string
}

// writeNodePool makes the NodeAddressPool equal to the store, at most every nodePoolInterval. A
// change of the result of Active is written at once if the last write was before that. It returns
// the time until the next check.
func (p *Publisher) writeNodePool(ctx context.Context, now time.Time) (after time.Duration) {
	n, active := &p.nodePool, p.Active()
	if !reflect.DeepEqual(active, n.active) {
		n.active, n.checkAt = active, n.wroteAt.Add(nodePoolInterval)
	}
	if now.Before(n.checkAt) {
		p.isPaused(updatingPool, now) // what has failed in the last check is shown until the next one
		return n.checkAt.Sub(now)
	}
	n.checkAt = now.Add(wait.Jitter(nodePoolInterval, 0.2))
	var usage []store.Usage
	err := p.Service.Node.Store.View(ctx, func(tx *store.Tx) error {
		usage = store.ByNetwork(tx.Usage())
		return nil
	})
	if err != nil {
		err = fmt.Errorf("reading the store: %w", err)
	} else {
		want := desiredNodePool(p.node, usage, active)
		shared := sharedCondition(p.Pool.Named().Shared, want.Status.Networks)
		want.Status.Conditions = append(want.Status.Conditions, shared...)
		err = p.updateNodePool(ctx, want, now)
	}
	if err != nil {
		p.pauses[updatingPool] = pause{err: err, until: n.checkAt}
		if !kube.IsTransient(err) {
			p.nodeAt = time.Time{} // the node may be another one of that name
		}
	}
	return n.checkAt.Sub(now)
}

// updateNodePool applies the parts of the object that differ: the object with its owner, and the
// status. What it has written counts as shown as long as nobody else changes the object: a CRD that
// lacks a field costs one write, not one in each check.
func (p *Publisher) updateNodePool(ctx context.Context, want *ipamv1.NodeAddressPool, now time.Time) error {
	n, existing := &p.nodePool, p.Pool.Object()
	if existing == nil && p.Pool.HasSynced() && !n.wroteAt.IsZero() {
		// It was deleted with the node, or the node's IPReservations may be gone as well: the CRDs
		// were deleted, or etcd was restored.
		p.nodeAt, p.listAt = time.Time{}, now.Add(wait.Jitter(time.Second, 1))
	}
	if existing == nil || !hasOwner(existing, want) {
		existing = &ipamv1.NodeAddressPool{}
		err := apply(ctx, p.Clients.IPAM, poolKind, want.ObjectMeta, "", nil, existing)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("this cluster does not serve NodeAddressPools, apply their CRD: %w", err)
		}
		if err != nil {
			return fmt.Errorf("writing the NodeAddressPool: %w", err)
		}
	}
	shown := existing.Status
	if existing.ResourceVersion == n.version {
		shown = n.applied
	}
	shown.Conditions = slices.DeleteFunc(slices.Clone(shown.Conditions), func(c metav1.Condition) bool {
		isOwn := c.Type == ipamv1.ConditionRetentionActive || c.Type == ipamv1.ConditionAddressesShared
		return !isOwn // server-side apply does not change those of others
	})
	for i := range want.Status.Conditions {
		c := &want.Status.Conditions[i]
		c.LastTransitionTime = metav1.Time{Time: p.Service.Node.Clock().Wall.Truncate(time.Second).UTC()}
		if before := meta.FindStatusCondition(shown.Conditions, c.Type); before != nil && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
	}
	if equality.Semantic.DeepEqual(shown, want.Status) {
		return nil
	}
	got := &ipamv1.NodeAddressPool{}
	if err := apply(ctx, p.Clients.IPAM, poolKind, want.ObjectMeta, "status", want.Status, got); err != nil {
		return fmt.Errorf("writing the status of the NodeAddressPool: %w", err)
	}
	n.applied, n.version, n.wroteAt = want.Status, got.ResourceVersion, now
	return nil
}

// desiredNodePool returns the desired object of a node, without the times of its conditions. usage
// contains the pools of the store, and statuses the networks that the runtime has loaded. A network
// in usage that the runtime has not loaded belongs to a former configuration. It is omitted if the
// state of all loaded networks is known and none of its addresses is bound or held.
func desiredNodePool(node nodeIdentity, usage []store.Usage, statuses []cniconf.Status) *ipamv1.NodeAddressPool {
	object := &ipamv1.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: node.owners()}}
	networks, used, loaded := map[string]bool{}, map[string]store.Usage{}, map[string]cniconf.Status{}
	for _, u := range usage {
		networks[u.Pool.Network], used[u.Pool.Network] = true, u
	}
	for _, s := range statuses {
		if s.Network != "" && len(s.Network) <= ipamv1.MaxNetworkName { // a longer one is not leasehold's
			networks[s.Network], loaded[s.Network] = true, s
		}
	}
	isComplete := len(statuses) > 0 &&
		!slices.ContainsFunc(statuses, func(s cniconf.Status) bool { return s.State == cniconf.Unknown })
	var total store.Usage
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		u := used[name]
		s, isLoaded := loaded[name]
		if !isLoaded {
			if s = notDetermined; isComplete && u.Bound+u.Held == 0 {
				continue
			}
		}
		if u.Ranges == nil && s.State == cniconf.Active && s.Size > 0 { // the plugin was not called yet
			u.Ranges, u.Size, u.Free = pool.Set{}, s.Size, s.Size-min(s.Size, u.Bound+u.Held)
		}
		if u.Ranges != nil {
			total.Ranges = pool.Set{}
			total.Size, total.Free = sum(total.Size, u.Size), sum(total.Free, u.Free)
		}
		total.Bound, total.Held = sum(total.Bound, u.Bound), sum(total.Held, u.Held)
		n := ipamv1.NetworkAddressPool{Name: name, AddressCounts: countsOf(u), Active: conditionStatus[s.State],
			Ranges: rangesOf(s.Sets), Link: u.Link}
		if s.State != cniconf.Active {
			n.Reason, n.Message = s.Reason, kube.Cut(s.Message, ipamv1.MaxMessage)
		}
		if n.Ranges == nil {
			n.Ranges = rangesOf([]pool.Set{u.Ranges})
		}
		if len(object.Status.Networks) < maxNetworks {
			object.Status.Networks = append(object.Status.Networks, n)
		}
	}
	s := summary(statuses)
	object.Status.AddressCounts = countsOf(total)
	object.Status.Conditions = []metav1.Condition{{Type: ipamv1.ConditionRetentionActive,
		Status: conditionStatus[s.State], Reason: s.Reason, Message: kube.Cut(s.Message, ipamv1.MaxMessage)}}
	return object
}

// sharedCondition returns the condition AddressesShared, nothing if no range of these networks is
// shared. It shows nothing that the manager could not have read in the NodeAddressPools.
func sharedCondition(shared []ipamv1.SharedRange, networks []ipamv1.NetworkAddressPool) []metav1.Condition {
	var parts []string
	for _, s := range shared {
		isIn := func(r ipamv1.AddressRange) bool { return contains(r, s) }
		i := slices.IndexFunc(networks, func(n ipamv1.NetworkAddressPool) bool {
			return n.Link != "" && slices.ContainsFunc(n.Ranges, isIn)
		})
		if i >= 0 && len(validation.IsDNS1123Subdomain(s.NodeName)) == 0 {
			parts = append(parts, fmt.Sprintf("%s-%s of network %s with node %s", s.Start, s.End, networks[i].Name,
				s.NodeName))
		}
	}
	if len(parts) == 0 {
		return nil
	}
	text := "a pod of each node may get the same address, unless their links are separate; give each node of a link " +
		"its own ranges. Shared are " + strings.Join(parts, ", ")
	return []metav1.Condition{{Type: ipamv1.ConditionAddressesShared, Status: metav1.ConditionTrue,
		Reason: "OtherNode", Message: kube.Cut(text, ipamv1.MaxMessage)}}
}

// contains reports whether a range has both addresses.
func contains(r ipamv1.AddressRange, part ipamv1.SharedRange) bool {
	var a [4]netip.Addr
	for i, text := range []string{r.Start, part.Start, part.End, r.End} {
		a[i], _ = netip.ParseAddr(text)
	}
	isSorted := slices.IsSortedFunc(a[:], func(a, b netip.Addr) int { return a.Compare(b) })
	return a[0].IsValid() && isSorted && part.Start == a[1].String() && part.End == a[2].String() &&
		a[1].Zone()+a[2].Zone() == ""
}

// rangesOf returns the ranges of range sets.
func rangesOf(sets []pool.Set) (out []ipamv1.AddressRange) {
	for _, r := range slices.Concat(sets...) {
		shown := ipamv1.AddressRange{Start: r.Start.String(), End: r.End.String()}
		if r.Subnet.IsValid() {
			shown.Subnet = r.Subnet.String()
		}
		if len(out) < ipamv1.MaxRanges {
			out = append(out, shown)
		}
	}
	return out
}

var conditionStatus = map[cniconf.State]metav1.ConditionStatus{cniconf.Active: metav1.ConditionTrue,
	cniconf.Inactive: metav1.ConditionFalse, cniconf.Unknown: metav1.ConditionUnknown}

// notDetermined is the status of the node before the first result of Active. It is also the status
// of a network that the runtime has not loaded: another plugin may call leasehold for that network.
var notDetermined = cniconf.Status{State: cniconf.Unknown, Reason: "NotDetermined",
	Message: "it was not determined whether the container runtime calls leasehold"}

// summary returns the status that represents all networks: the first inactive one, otherwise the
// first unknown one, otherwise the first one. Without a status it returns notDetermined.
func summary(statuses []cniconf.Status) cniconf.Status {
	for _, state := range []cniconf.State{cniconf.Inactive, cniconf.Unknown, cniconf.Active} {
		if i := slices.IndexFunc(statuses, func(s cniconf.Status) bool { return s.State == state }); i >= 0 {
			return statuses[i]
		}
	}
	return notDetermined
}

// countsOf returns the counts of a network. Size and Free are nil if the ranges of the network are
// not known.
func countsOf(u store.Usage) ipamv1.AddressCounts {
	c := ipamv1.AddressCounts{Bound: int64(u.Bound), Held: int64(u.Held)}
	if u.Ranges != nil {
		c.Size, c.Free = new(int64(u.Size)), new(int64(u.Free))
	}
	return c
}

// sum returns a+b, at most pool.MaxSize, which neither is greater than.
func sum(a, b uint64) uint64 { return min(a+b, pool.MaxSize) }
