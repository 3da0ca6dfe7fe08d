package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// nodePoolInterval is the least time between two writes of the NodeAddressPool, and the time
	// for which numbers must differ before they are written.
	nodePoolInterval = 30 * time.Second
	// maxNodePoolRetry is the longest time until a rejected write is retried.
	maxNodePoolRetry = 10 * time.Minute
	// maxNetworks is the largest number of networks that the CRD accepts.
	maxNetworks = 256
)

// NodePool is the task that writes the NodeAddressPool of the node: the number of free, bound and
// held addresses, and whether leasehold serves the node's networks. The object has the name of the
// node and is owned by the node.
type NodePool struct {
	Service *maintain.Service
	Node    string
	Clients *informer.Clients
	Pool    *Pool
	// UID returns the UID of the node, "" if it is not known. Reread makes it be read again soon
	// (Publisher).
	UID    func() string
	Reread func()
	// Active returns the status of each network that the container runtime has loaded, or nil
	// before the first result (active.Watcher.Result). It must not block.
	Active func() []cniconf.Status
	// Lost is called if the object that this task has written does not exist any more. Then the
	// node's IPReservations may not exist, either: the CRDs were deleted, or etcd was restored.
	Lost func()
	Log  *slog.Logger

	existing *ipamv1.NodeAddressPool // as last watched or written; nil if it does not exist or is not known
	differed bool                    // the numbers differed at the last pass, too
	applied  *ipamv1.NodeAddressPool // last written status, with the resource version of the response
	wroteAt  lease.Instant           // when the status was last written
	rejected int                     // passes in a row with a request that the API server rejected
	problem  string                  // the last problem that was logged
}

// Run writes the object until ctx is done, at intervals of at least nodePoolInterval. changes
// receives a value if the result of Active or UID has changed. Such a change is written at once if
// the last write was at least nodePoolInterval ago; changes of the store are written at the next
// interval. Run returns ctx.Err().
func (p *NodePool) Run(ctx context.Context, changes <-chan struct{}) error {
	return informer.Loop(ctx, time.Second, changes, p.pass)
}

// pass updates the object, unless it was written less than nodePoolInterval ago. It returns the
// time until the next pass. The time grows with each rejected pass in a row, up to
// maxNodePoolRetry.
func (p *NodePool) pass(ctx context.Context) (requeueAfter time.Duration) {
	if rest := nodePoolInterval - p.Service.Clock().Since(p.wroteAt); rest > 0 && !p.wroteAt.IsZero() {
		return rest
	}
	err := p.update(ctx)
	if ctx.Err() != nil {
		return 0
	}
	p.logProblem(err)
	if err == nil || isTransient(err) {
		p.rejected = 0
		return wait.Jitter(nodePoolInterval, 0.2)
	}
	p.rejected++
	return wait.Jitter(min(nodePoolInterval<<min(p.rejected-1, 10), maxNodePoolRetry), 0.2)
}

// update reads the store and writes the object if it differs. It does nothing as long as the UID of
// the node is not known.
func (p *NodePool) update(ctx context.Context) error {
	var usage []store.Usage
	err := p.Service.Store.View(ctx, func(tx *store.Tx) error {
		usage = store.ByNetwork(tx.Usage())
		return nil
	})
	if err != nil && !store.IsEmpty(err) {
		return fmt.Errorf("reading the store: %w", err)
	}
	node := nodeIdentity{p.Node, p.UID()}
	if node.UID == "" {
		return nil
	}
	p.existing = p.Pool.Object()
	err = p.write(ctx, desiredNodePool(node, usage, p.Active()), p.Service.Clock())
	if err != nil && !isTransient(err) {
		p.Reread()
	}
	return err
}

// write applies the parts of the object that differ: the object with its owner, and the status.
func (p *NodePool) write(ctx context.Context, want *ipamv1.NodeAddressPool, now lease.Instant) error {
	if p.existing == nil && p.applied != nil {
		p.Lost()
		p.Reread() // it is deleted with the node
	}
	if !p.isOwned(want) {
		got, err := p.apply(ctx, &ipamv1.NodeAddressPool{ObjectMeta: want.ObjectMeta})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("this cluster does not serve NodeAddressPools, apply their CRD: %w", err)
		}
		if err != nil {
			return fmt.Errorf("writing the NodeAddressPool: %w", err)
		}
		p.existing = got
	}
	setTransitionTimes(want, p.existing, now.Wall)
	if isShown(want, p.existing) || p.hadNoEffect(want) {
		p.differed = false
		return nil
	}
	// A pod that is being replaced changes the numbers for a few seconds only.
	if !p.differed && isSameButCounts(want, p.existing) {
		p.differed = true
		return nil
	}
	p.differed = false
	got, err := p.apply(ctx, want, "status")
	if err != nil {
		return fmt.Errorf("writing the status of the NodeAddressPool: %w", err)
	}
	p.existing, p.applied, p.wroteAt = got, want, now
	p.applied.ResourceVersion = got.ResourceVersion
	return nil
}

// isOwned reports whether the object exists with the node as its owner.
func (p *NodePool) isOwned(want *ipamv1.NodeAddressPool) bool {
	return p.existing != nil && equality.Semantic.DeepEqual(p.existing.OwnerReferences, want.OwnerReferences)
}

// isShown reports whether the status of object is equal to the status of want. It ignores the
// conditions of other field managers.
func isShown(want, object *ipamv1.NodeAddressPool) bool {
	status := *object.Status.DeepCopy()
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c metav1.Condition) bool {
		return c.Type != ipamv1.ConditionRetentionActive
	})
	return equality.Semantic.DeepEqual(status, want.Status)
}

// hadNoEffect reports whether the same status was applied before and the object has not changed
// since then. In that case the CRD of the server lacks a field, and another apply would be useless.
func (p *NodePool) hadNoEffect(want *ipamv1.NodeAddressPool) bool {
	return p.applied != nil && p.applied.ResourceVersion == p.existing.ResourceVersion && isShown(want, p.applied)
}

// apply creates the object or updates its owner, or, with the subresource "status", updates its
// status. It returns the object from the response.
func (p *NodePool) apply(
	ctx context.Context, object *ipamv1.NodeAddressPool, subresource ...string,
) (*ipamv1.NodeAddressPool, error) {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	body := map[string]any{
		"apiVersion": ipamv1.GroupVersion.String(), "kind": "NodeAddressPool",
		"metadata": map[string]any{"name": object.Name},
	}
	if len(subresource) > 0 {
		body["status"] = object.Status
	} else {
		body["metadata"] = map[string]any{"name": object.Name, "ownerReferences": object.OwnerReferences}
	}
	data, _ := json.Marshal(body) // cannot fail: strings, numbers and times
	got := &ipamv1.NodeAddressPool{}
	err := p.Clients.IPAM.Patch(types.ApplyPatchType).
		Resource(ipamv1.NodeAddressPoolResource.Resource).Name(object.Name).SubResource(subresource...).
		Param("fieldManager", fieldManager).Param("force", "true").Body(data).Do(ctx).Into(got)
	if err != nil {
		return nil, err
	}
	return got, p.Pool.Learn(got, false)
}

// isSameButCounts reports whether the status of object shows the networks and the condition of
// want, perhaps with other numbers.
func isSameButCounts(want, object *ipamv1.NodeAddressPool) bool {
	withoutCounts := func(o *ipamv1.NodeAddressPool) *ipamv1.NodeAddressPool {
		o = o.DeepCopy()
		o.Status.AddressCounts = ipamv1.AddressCounts{}
		for i := range o.Status.Networks {
			o.Status.Networks[i].AddressCounts = ipamv1.AddressCounts{}
		}
		return o
	}
	return isShown(withoutCounts(want), withoutCounts(object))
}

// logProblem logs a problem when it begins, when it changes, and when it is over.
func (p *NodePool) logProblem(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == p.problem:
		return
	case err != nil:
		p.Log.Warn("updating the NodeAddressPool failed", "error", err)
	default:
		p.Log.Info("updating the NodeAddressPool works again")
	}
	p.problem = text
}

// desiredNodePool returns the desired object of a node, without the times of its conditions. usage
// contains the pools of the store, and statuses the networks that the runtime has loaded. A network
// in usage that the runtime has not loaded belongs to a former configuration. It is omitted if the
// state of all loaded networks is known and none of its addresses is bound or held.
func desiredNodePool(node nodeIdentity, usage []store.Usage, statuses []cniconf.Status) *ipamv1.NodeAddressPool {
	object := &ipamv1.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: node.Name,
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: types.UID(node.UID)},
		}}}
	networks := map[string]ipamv1.NetworkAddressPool{}
	for _, s := range statuses {
		if s.Network != "" && len(s.Network) <= ipamv1.MaxNetworkName { // a longer one is not leasehold's
			n := ipamv1.NetworkAddressPool{Name: s.Network, Active: conditionStatus[s.State]}
			if s.State != cniconf.Active {
				n.Reason, n.Message = s.Reason, informer.Cut(s.Message, ipamv1.MaxMessage)
			}
			networks[s.Network] = n
		}
	}
	isComplete := len(statuses) > 0 &&
		!slices.ContainsFunc(statuses, func(s cniconf.Status) bool { return s.State == cniconf.Unknown })
	sizes := map[string]uint64{} // of the ranges in the configuration, until the plugin was called
	for _, s := range statuses {
		if s.State != cniconf.Active || s.Size == 0 {
			continue
		}
		sizes[s.Network] = s.Size
		if !slices.ContainsFunc(usage, func(u store.Usage) bool { return u.Pool.Network == s.Network }) {
			usage = append(slices.Clip(usage), store.Usage{Pool: lease.Pool{Network: s.Network}})
		}
	}
	status := &object.Status
	for _, u := range usage {
		name := u.Pool.Network
		n, isLoaded := networks[name]
		if !isLoaded {
			n = ipamv1.NetworkAddressPool{Name: name, Active: metav1.ConditionUnknown, Reason: notDetermined.Reason,
				Message: notDetermined.Message}
			if isComplete && u.Bound+u.Held == 0 {
				continue
			}
		}
		if size := sizes[name]; u.Ranges == nil && size > 0 {
			u.Ranges, u.Size, u.Free = pool.Set{}, size, size-min(size, u.Bound+u.Held)
		}
		n.AddressCounts = countsOf(u)
		networks[name] = n
		status.Size, status.Free = sumKnown(status.Size, n.Size), sumKnown(status.Free, n.Free)
		status.Bound, status.Held = sum(status.Bound, n.Bound), sum(status.Held, n.Held)
	}
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		if len(status.Networks) < maxNetworks {
			status.Networks = append(status.Networks, networks[name])
		}
	}
	s := summary(statuses)
	status.Conditions = []metav1.Condition{{Type: ipamv1.ConditionRetentionActive, Status: conditionStatus[s.State],
		Reason: s.Reason, Message: informer.Cut(s.Message, ipamv1.MaxMessage)}}
	return object
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
	c := ipamv1.AddressCounts{Bound: limited(u.Bound), Held: limited(u.Held)}
	if u.Ranges != nil {
		size, free := limited(u.Size), limited(u.Free)
		c.Size, c.Free = &size, &free
	}
	return c
}

// limited returns the smaller of n and math.MaxInt64.
func limited(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// sum returns a+b, or math.MaxInt64 if that is smaller. a and b are not negative.
func sum(a, b int64) int64 { return limited(uint64(a) + uint64(b)) }

// sumKnown returns the sum of the numbers that are not nil, or nil if both are nil.
func sumKnown(a, b *int64) *int64 {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	n := sum(*a, *b)
	return &n
}

// setTransitionTimes sets the transition times of the conditions of want. A condition whose status
// has not changed keeps the time from existing; any other gets now.
func setTransitionTimes(want, existing *ipamv1.NodeAddressPool, now time.Time) {
	for i := range want.Status.Conditions {
		c := &want.Status.Conditions[i]
		c.LastTransitionTime = metav1.Time{Time: now.Truncate(time.Second).UTC()}
		for _, old := range existing.Status.Conditions {
			if old.Type == c.Type && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
	}
}
