package pin

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// byName is the index of pods by their reservation name and node (control.NodeKey).
const byName = "name"

// A cluster is what this replica of the manager knows of the cluster, and what became of the pods
// that ended recently.
type cluster struct {
	pods         *kube.Informer[*podView]
	reservations *control.Reservations
	nodes        *control.Nodes
	namespaces   *kube.Informer[map[string]string] // the labels that set the pin of their pods
	now          func() time.Time
	isLeader     func() bool

	ended   *kube.Informer[*podView] // pods whose addresses their nodes may not have published yet
	strikes *cache.LRUExpireCache    // []strike by podView.keyOn
	sent    [4096]sentList           // by sentIndex: few share one by chance

	mu        sync.Mutex // held while instances or names change
	instances sync.Map   // instance by podView.keyOn
	names     sync.Map   // []*nameOnNode by control.NameKey
}

// newCluster returns a cluster and adds its watches of pods and namespaces to the manager, which
// has not started.
func newCluster(mgr manager.Manager, set *control.Reservations, nodes *control.Nodes, kinds []schema.GroupKind,
) (*cluster, error) {
	c := emptyCluster(time.Now, func(p *corev1.Pod) *podView { return viewPod(p, kinds) }, set, nodes)
	c.isLeader = control.IsLeader(mgr)
	core := corev1.SchemeGroupVersion
	return c, errors.Join(
		control.Watch(mgr, c.pods, "pods", control.Objects{Kind: core.WithKind("Pod"), Resource: "pods",
			Label: kube.LabelRetained}),
		control.Watch(mgr, c.namespaces, "namespaces", control.Objects{Kind: core.WithKind("Namespace"),
			Resource: "namespaces"}),
		mgr.Add(control.OnAllReplicas(func(ctx context.Context) error {
			wait.UntilWithContext(ctx, func(context.Context) { c.expire() }, time.Minute)
			return nil
		})))
}

// emptyCluster returns a cluster that follows reservations, and pods with views of objects of the
// type P.
func emptyCluster[P metav1.Object](now func() time.Time, view func(P) *podView, set *control.Reservations,
	nodes *control.Nodes) *cluster {
	byNode := kube.Indexes[*podView]{
		byName: func(p *podView) []string { return control.IndexName(p.Namespace, p.For, p.place()) }}
	c := &cluster{now: now, isLeader: func() bool { return true }, reservations: set, nodes: nodes,
		strikes: cache.NewLRUExpireCache(maxStrikeKeys),
		namespaces: kube.NewInformer(func(ns *corev1.Namespace) map[string]string {
			return control.Pick(ns.Labels, kube.AnnotationPin, kube.AnnotationPinPatience)
		}, nil),
		pods: kube.NewInformer(view, byNode), ended: kube.NewInformer(func(p *podView) *podView { return p }, byNode)}
	c.pods.Handle(kube.Handler[*podView]{Added: c.podAdded, Updated: c.podUpdated, Deleted: c.podDeleted})
	set.Handle(kube.Handler[*control.Reservation]{Added: c.reservationChanged,
		Updated: func(before, r *control.Reservation) {
			c.reservationChanged(before)
			c.reservationChanged(r)
		}, Deleted: c.reservationDeleted})
	return c
}

// Synced reports whether pods, reservations, nodes and namespaces have been listed once.
func (c *cluster) Synced() bool {
	return c.pods.HasSynced() && c.reservations.HasSynced() && c.nodes.HasSynced() && c.namespaces.HasSynced()
}

func (c *cluster) podAdded(p *podView) {
	if p.For != "" {
		c.sent[p.SentIndex].forget(p.Sent)
	}
	c.podUpdated(p, p)
}

func (c *cluster) podUpdated(before, p *podView) {
	if p.isMisplaced() {
		c.strike(p)
	}
	c.changed(before.Namespace, before.For, before.place())
	c.podChanged(p)
}

// podDeleted remembers what became of a pod that was deleted.
func (c *cluster) podDeleted(p *podView) {
	if p.awaitsNode() {
		c.strike(p)
	}
	for _, key := range slices.Compact([]string{keyOf(p), p.keyOn(p.Node)}) {
		c.remember(key, func(t instance) instance { return t.after(p, c.now()) })
	}
	if p.For != "" && p.Started {
		_ = c.ended.Update(p) // it fails only for other types
	}
	c.podChanged(p)
}

// podChanged has what counts of a pod for reservation names counted again: the pod, and the
// reservations about which it says more.
func (c *cluster) podChanged(p *podView) {
	c.changed(p.Namespace, p.For, p.place())
	c.instanceChanged(keyOf(p))
}

func (c *cluster) instanceChanged(key string) {
	for _, r := range c.reservations.OfPod(key) {
		c.reservationChanged(r)
	}
}

func (c *cluster) reservationChanged(r *control.Reservation) { c.changed(r.Namespace, r.For, r.Node) }

// reservationDeleted remembers that a reservation was deleted, because the window has ended or the
// addresses were released. Then choose does not wait for the reservation to be published. If an
// agent still has the lease, it publishes the reservation again.
func (c *cluster) reservationDeleted(r *control.Reservation) {
	c.remember(r.PodKey(), func(t instance) instance {
		if r.PodUID == "" || t.Node != "" && t.Node != r.Node {
			return t // the last pod was on another node
		}
		t.Lost = podOnNode{r.PodUID, r.Node}
		if t.Node == "" {
			t.Until = c.now().Add(maxMemory)
		}
		return t
	})
	c.reservationChanged(r)
	c.instanceChanged(r.PodKey())
}

// remember replaces the instance of a key by the one that change returns.
func (c *cluster) remember(key string, change func(instance) instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.lastEnded(key)
	if next := change(before); next != before {
		c.instances.Store(key, next)
	}
}

// expire forgets the instances whose time is over, except for those that are contested.
func (c *cluster) expire() {
	c.instances.Range(func(key, value any) bool {
		t, pod := value.(instance), key.(string)
		p := c.pod(pod)
		if c.now().After(t.Until) && (p == nil || t.Lost.UID != string(p.UID)) && !c.contested(pod, t) &&
			c.instances.CompareAndDelete(key, value) {
			c.instanceChanged(pod)
		}
		return true
	})
	for _, p := range c.ended.List() {
		if !c.lastEnded(keyOf(p)).unpublished(c.now()) {
			_ = c.ended.Delete(p)
		}
	}
	c.forgetUnused()
}

// contested reports whether both the node of the last instance and another node have a reservation
// with the name of the pod. Such an instance is not forgotten, because nothing else shows which of
// the reservations is right.
func (c *cluster) contested(key string, t instance) bool {
	var last, other bool
	for _, r := range c.reservations.OfPod(key) {
		last = last || r.Node == t.Node
		other = other || r.Node != t.Node
	}
	return last && other
}

// last returns the last instance with the name of a pod that is being created. If the watch still
// shows the former pod, last treats that pod as ended now.
func (c *cluster) last(key string) instance {
	t := c.lastEnded(key)
	if p := c.pod(key); p != nil {
		t = t.after(p, c.now())
	}
	return t
}

// lastEnded returns the instance of the last pod with a key of which the watch has shown the
// deletion.
func (c *cluster) lastEnded(key string) instance {
	value, _ := c.instances.Load(key)
	last, _ := value.(instance)
	return last
}

// hasStrike reports whether a key has a strike. A pod of that key which the watch still shows must
// have been deleted if another one is created, so that it counts as deleted.
func (c *cluster) hasStrike(key string) bool {
	p := c.pod(key)
	return p != nil && p.awaitsNode() || c.strikesUntil(key, c.now()) > 0
}

func (c *cluster) pod(key string) *podView {
	p, _ := c.pods.Get(key)
	return p
}

// target returns the node that has the addresses of a pod without a reservation name, as choose
// chooses it.
func (c *cluster) target(key string) pinTarget {
	last := c.last(key)
	t := choose(c.reservations.OfPod(key), last, c.now())
	t.Last, t.HasStrike = last, c.hasStrike(key)
	return t
}
