package pin

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// byName is the index of pods by their reservation name (control.NameKey).
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

	recent  *recentPods
	strikes *strikes

	mu        sync.Mutex
	instances map[string]instance // by podView.keyOn
}

// newCluster returns a cluster and adds its watches of pods and namespaces to the manager, which
// has not started.
func newCluster(mgr manager.Manager, set *control.Reservations, nodes *control.Nodes, kinds []schema.GroupKind,
) (*cluster, error) {
	c := emptyCluster(time.Now, func(p *corev1.Pod) *podView { return viewPod(p, kinds) }, set, nodes)
	c.isLeader = control.IsLeader(mgr)
	core := corev1.SchemeGroupVersion
	if err := control.Watch(mgr, c.pods, core.WithKind("Pod"), "pods", kube.LabelRetained); err != nil {
		return nil, err
	}
	if err := control.Watch(mgr, c.namespaces, core.WithKind("Namespace"), "namespaces", ""); err != nil {
		return nil, err
	}
	return c, mgr.Add(control.OnAllReplicas(func(ctx context.Context) error {
		wait.UntilWithContext(ctx, func(context.Context) {
			c.expireInstances()
			c.recent.Expire()
		}, time.Minute)
		return nil
	}))
}

// emptyCluster returns a cluster that follows reservations, and pods with views of objects of the
// type P.
func emptyCluster[P metav1.Object](now func() time.Time, view func(P) *podView, set *control.Reservations,
	nodes *control.Nodes) *cluster {
	c := &cluster{now: now, recent: newRecentPods(now), strikes: newStrikes(now),
		instances: map[string]instance{}, isLeader: func() bool { return true }, reservations: set, nodes: nodes,
		namespaces: kube.NewInformer(func(ns *corev1.Namespace) map[string]string {
			return control.Pick(ns.Labels, kube.AnnotationPin, kube.AnnotationPinPatience)
		}, nil),
		pods: kube.NewInformer(view, kube.Indexes[*podView]{
			byName: func(p *podView) []string { return control.IndexName(p.Namespace, p.For) }})}
	c.pods.Handle(kube.Handler[*podView]{Added: c.podAdded, Updated: func(_, p *podView) { c.podUpdated(p) },
		Deleted: c.podDeleted})
	set.Handle(kube.Handler[*control.Reservation]{Deleted: c.reservationDeleted})
	return c
}

// Synced reports whether pods, reservations, nodes and namespaces have been listed once.
func (c *cluster) Synced() bool {
	return c.pods.HasSynced() && c.reservations.HasSynced() && c.nodes.HasSynced() && c.namespaces.HasSynced()
}

func (c *cluster) podAdded(p *podView) {
	if p.For != "" && p.Sent != "" {
		c.recent.Arrived(control.NameKey(p.Namespace, p.For), p.Sent)
	}
	c.podUpdated(p)
}

func (c *cluster) podUpdated(p *podView) {
	if p.isMisplaced() {
		c.strikes.Add(p.keyOn(p.Pinned), string(p.UID))
	}
}

// podDeleted remembers what became of a pod that was deleted.
func (c *cluster) podDeleted(p *podView) {
	if p.awaitsNode() {
		c.strikes.Add(p.keyOn(p.Pinned), string(p.UID))
	}
	c.mu.Lock()
	for _, key := range slices.Compact([]string{keyOf(p), p.keyOn(p.Node)}) {
		if t := c.instances[key].after(p, c.now()); t != (instance{}) {
			c.instances[key] = t
		}
	}
	c.mu.Unlock()
	if p.For != "" && p.Started {
		c.recent.Ended(control.NameKey(p.Namespace, p.For), p)
	}
}

// reservationDeleted remembers that a reservation was deleted, because the window has ended or the
// addresses were released. Then choose does not wait for the reservation to be published. If an
// agent still has the lease, it publishes the reservation again.
func (c *cluster) reservationDeleted(r *control.Reservation) {
	if r.PodUID == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.instances[r.PodKey()]
	if t.Node != "" && t.Node != r.Node {
		return // the last pod was on another node
	}
	t.Lost = podOnNode{r.PodUID, r.Node}
	if t.Node == "" {
		t.Until = c.now().Add(maxMemory)
	}
	c.instances[r.PodKey()] = t
}

// expireInstances forgets the instances whose time is over, except for those that are contested.
func (c *cluster) expireInstances() {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.instances, func(key string, t instance) bool {
		p := c.pod(key)
		return now.After(t.Until) && (p == nil || t.Lost.UID != string(p.UID)) && !c.contested(key, t)
	})
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
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instances[key]
}

// isStruck reports whether a key has a strike. A pod of that key which the watch still shows must
// have been deleted if another one is created, so that it counts as deleted.
func (c *cluster) isStruck(key string) bool {
	p := c.pod(key)
	return p != nil && p.awaitsNode() || c.strikes.Until(key, c.now()) > 0
}

func (c *cluster) pod(key string) *podView {
	p, _ := c.pods.Get(key)
	return p
}

// targetsOf returns the nodes that have an address for a pod, the best first. For a pod without a
// reservation name that is at most one, as choose chooses it.
func (c *cluster) targetsOf(namespace, pod, reservationName string) []pinTarget {
	if reservationName != "" {
		name := control.NameKey(namespace, reservationName)
		all := c.targets(name, !c.isLeader())
		for i, t := range all {
			key := nodeKey(name, t.Node)
			all[i].Last, all[i].Struck = c.lastEnded(key), c.isStruck(key)
		}
		return all
	}
	key := namespace + "/" + pod
	last := c.last(key)
	t, found := choose(c.reservations.OfPod(key), last, c.now())
	if !found {
		return nil
	}
	t.Last, t.Struck = last, c.isStruck(key)
	return []pinTarget{t}
}
