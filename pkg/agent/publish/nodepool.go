package publish

import (
	"cmp"
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

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	// nodePoolInterval is the least time between two writes of the NodeAddressPool.
	nodePoolInterval = 30 * time.Second
	// nodePoolReread is how often the object and the node are read, in case somebody has changed or
	// deleted them.
	nodePoolReread = 5 * time.Minute
	// maxNodePoolRetry is the longest time until a rejected write is repeated.
	maxNodePoolRetry = 10 * time.Minute
	// maxNetworks is the largest number of networks that the CRD accepts.
	maxNetworks = 256
)

// Activity says whether the container runtime calls leasehold: True, False or Unknown.
type Activity struct {
	Status metav1.ConditionStatus
	// Reason is one word in CamelCase.
	Reason string
	// Message is a sentence for people.
	Message string
}

// ActiveFunc returns the activity of the node, and of each of its networks by name. It must not
// block.
type ActiveFunc func() (node Activity, networks map[string]Activity)

// notDetermined is the activity of a node and of networks that an ActiveFunc does not name.
var notDetermined = Activity{Status: metav1.ConditionUnknown, Reason: "NotDetermined",
	Message: "it was not determined whether the container runtime calls leasehold"}

func (a Activity) orUnknown() Activity {
	if a.Status == "" {
		return notDetermined
	}
	return a
}

// NodePool is the task that writes the node's NodeAddressPool.
type NodePool struct {
	Service *ipam.Service
	Node    string
	Clients *informer.Clients
	// Active may be nil: then it is not known whether leasehold is active.
	Active ActiveFunc
	Log    *slog.Logger

	node     nodeIdentity
	existing *ipamv1.NodeAddressPool // as last read or written; nil if there is none
	readAt   lease.Instant           // when the node and the object were read; zero if they have to be
	applied  *ipamv1.NodeAddressPool // what was written last, with the resource version that it got
	rejected int                     // writes in a row that were rejected
	problem  string                  // the last problem that was logged
}

// Run writes the object whenever the store has changed, until ctx is done.
func (p *NodePool) Run(ctx context.Context) error {
	return informer.Loop(ctx, nodePoolInterval, nil, p.pass)
}

// pass writes the object if it has to be.
func (p *NodePool) pass(ctx context.Context) (requeueAfter time.Duration) {
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

func (p *NodePool) update(ctx context.Context) error {
	var usage []store.Usage
	err := p.Service.Store.View(ctx, func(tx *store.Tx) error {
		usage = store.ByNetwork(tx.Usage())
		return nil
	})
	if err != nil && !store.IsEmpty(err) {
		return fmt.Errorf("reading the store: %w", err)
	}
	now := p.Service.Clock()
	if p.readAt.IsZero() || now.Since(p.readAt) >= nodePoolReread {
		p.readAt = lease.Instant{}
		if err := p.read(ctx); err != nil {
			return err
		}
		p.readAt = now
	}
	node, networks := notDetermined, map[string]Activity{}
	if p.Active != nil {
		node, networks = p.Active()
	}
	want := desiredNodePool(p.node, usage, node.orUnknown(), networks)
	if err := p.write(ctx, want, now.Wall); err != nil {
		p.readAt = lease.Instant{}
		return err
	}
	return nil
}

// read reads the UID of the node, and the object.
func (p *NodePool) read(ctx context.Context) error {
	uid, err := readNodeUID(ctx, p.Clients.Core, p.Node)
	if err != nil {
		return fmt.Errorf("reading the node: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	existing := &ipamv1.NodeAddressPool{}
	err = p.Clients.IPAM.Get().Resource(ipamv1.NodeAddressPoolResource.Resource).Name(p.Node).Do(ctx).Into(existing)
	if apierrors.IsNotFound(err) { // or the resource is not served, which the write shows
		existing, err = nil, nil
	}
	if err != nil {
		return fmt.Errorf("reading the NodeAddressPool: %w", err)
	}
	p.node, p.existing = nodeIdentity{p.Node, uid}, existing
	return nil
}

// write applies the parts of the object that differ.
func (p *NodePool) write(ctx context.Context, want *ipamv1.NodeAddressPool, now time.Time) error {
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
	setTransitionTimes(want, p.existing, now)
	if isShown(want, p.existing) || p.hadNoEffect(want) {
		return nil
	}
	got, err := p.apply(ctx, want, "status")
	if err != nil {
		return fmt.Errorf("writing the status of the NodeAddressPool: %w", err)
	}
	p.existing, p.applied = got, want
	p.applied.ResourceVersion = got.ResourceVersion
	return nil
}

// isOwned reports whether the object exists and has the owner that it should have.
func (p *NodePool) isOwned(want *ipamv1.NodeAddressPool) bool {
	return p.existing != nil && equality.Semantic.DeepEqual(p.existing.OwnerReferences, want.OwnerReferences)
}

// isShown reports whether the status of an object shows all of want. Conditions of others are
// ignored.
func isShown(want, object *ipamv1.NodeAddressPool) bool {
	status := *object.Status.DeepCopy()
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c metav1.Condition) bool {
		return c.Type != ipamv1.ConditionRetentionActive
	})
	return equality.Semantic.DeepEqual(status, want.Status)
}

// hadNoEffect reports whether the same status was written, and the object is as the server made it
// then: its CRD lacks a field.
func (p *NodePool) hadNoEffect(want *ipamv1.NodeAddressPool) bool {
	return p.applied != nil && p.applied.ResourceVersion == p.existing.ResourceVersion && isShown(want, p.applied)
}

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
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	got := &ipamv1.NodeAddressPool{}
	err = p.Clients.IPAM.Patch(types.ApplyPatchType).Resource(ipamv1.NodeAddressPoolResource.Resource).Name(object.Name).
		SubResource(subresource...).Param("fieldManager", fieldManager).Param("force", "true").
		Body(data).Do(ctx).Into(got)
	return got, err
}

// logProblem logs a problem when it begins, changes and ends.
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

// desiredNodePool returns the object of a node, without the times of its conditions.
func desiredNodePool(
	node nodeIdentity, usage []store.Usage, active Activity, networks map[string]Activity,
) *ipamv1.NodeAddressPool {
	object := &ipamv1.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: node.Name,
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: types.UID(node.UID)},
		}}}
	byName := map[string]ipamv1.NetworkAddressPool{}
	for name := range networks {
		byName[name] = ipamv1.NetworkAddressPool{Name: name}
	}
	status := &object.Status
	for _, u := range usage {
		counts := countsOf(u)
		byName[u.Pool.Network] = ipamv1.NetworkAddressPool{Name: u.Pool.Network, AddressCounts: counts}
		status.Size, status.Free = sumKnown(status.Size, counts.Size), sumKnown(status.Free, counts.Free)
		status.Bound, status.Held = sum(status.Bound, counts.Bound), sum(status.Held, counts.Held)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		n, is := byName[name], networks[name].orUnknown()
		n.Active = is.Status
		if is.Status != metav1.ConditionTrue {
			n.Message = is.Message
		}
		if len(status.Networks) < maxNetworks {
			status.Networks = append(status.Networks, n)
		}
	}
	status.Conditions = []metav1.Condition{{Type: ipamv1.ConditionRetentionActive, Status: active.Status,
		Reason: cmp.Or(active.Reason, notDetermined.Reason), Message: active.Message}}
	return object
}

func countsOf(u store.Usage) ipamv1.AddressCounts {
	c := ipamv1.AddressCounts{Bound: limited(u.Bound), Held: limited(u.Held)}
	if u.Ranges != nil {
		size, free := limited(u.Size), limited(u.Free)
		c.Size, c.Free = &size, &free
	}
	return c
}

// limited returns n, at most math.MaxInt64.
func limited(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// sum returns a+b, at most math.MaxInt64.
func sum(a, b int64) int64 { return limited(uint64(a) + uint64(b)) }

// sumKnown is sum without the numbers that are not known. It returns nil if neither is.
func sumKnown(a, b *int64) *int64 {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	n := sum(*a, *b)
	return &n
}

// setTransitionTimes sets the time of each condition to that of the existing one if its status is
// the same, else to now.
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
