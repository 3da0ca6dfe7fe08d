package pin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// The indexes of the informers.
const (
	byPod   = "pod"   // reservations by "namespace/pod"
	byName  = "name"  // reservations and pods by "namespace/reservation name"
	byGate  = "gate"  // pods whose only gate is the gate of the pin
	theGate = "gated" // the only value of byGate
)

// CacheOptions restricts what the manager's cache keeps of Nodes and Namespaces to the fields that
// this package reads.
func CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Node{}:  {Transform: trimNode},
		namespaceMeta(): {Transform: trimNamespace},
	}
}

// namespaceMeta returns an empty Namespace for the client's Get and the options of the cache. Its
// type has only metadata, so that the cache keeps nothing else; a corev1.Namespace would start a
// second watch.
func namespaceMeta() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}

// A cluster is what this replica of the manager knows of the cluster: pods and reservations from
// informers, nodes and namespaces from the manager's cache, and the pods that ended recently.
type cluster struct {
	reader       client.Reader // of nodes and namespaces, from the manager's cache
	pods         *informer.Informer[*podView]
	reservations *informer.Informer[*reservation]
	tasks        []func(context.Context) error // run the informers
	synced       []func() bool
	now          func() time.Time
	isFollower   func() bool // reports whether this replica is not the leader; nil in tests

	mu        sync.Mutex
	instances map[string]instance // by "namespace/pod", and those of reservation names by nameKey
	admitted  map[string]admitted // pods with a reservation name, by "namespace/pod"
	ended     map[string][]string // names of pods that ended lately, by nameKey
}

// newCluster returns a cluster and adds its informers to the manager, which has not started.
func newCluster(ctx context.Context, mgr manager.Manager, now func() time.Time) (*cluster, error) {
	c := &cluster{reader: mgr.GetClient(), now: now, instances: map[string]instance{}, admitted: map[string]admitted{},
		ended: map[string][]string{},
		pods:  informer.New(viewPod, podIndexes), reservations: informer.New(viewReservation, reservationIndexes)}
	c.isFollower = func() bool {
		select {
		case <-mgr.Elected():
			return false
		default:
			return true
		}
	}
	pods, err := listWatch(mgr, corev1.SchemeGroupVersion.WithKind("Pod"), "pods",
		func(o *metav1.ListOptions) { o.LabelSelector = wellknown.LabelRetained })
	if err != nil {
		return nil, err
	}
	reservations, err := listWatch(mgr, ipam.GroupVersion.WithKind("IPReservation"), ipam.Resource.Resource,
		func(*metav1.ListOptions) {})
	if err != nil {
		return nil, err
	}
	c.tasks = []func(context.Context) error{
		func(ctx context.Context) error { return c.pods.Run(ctx, pods, "retained pods") },
		func(ctx context.Context) error { return c.reservations.Run(ctx, reservations, "reservations") },
	}
	c.pods.Handle(informer.Handler[*podView]{Deleted: c.podDeleted})
	c.reservations.Handle(informer.Handler[*reservation]{Deleted: c.reservationDeleted})
	c.synced = []func() bool{c.pods.HasSynced, c.reservations.HasSynced}
	for _, object := range []client.Object{&corev1.Node{}, namespaceMeta()} {
		cached, err := mgr.GetCache().GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w", object, err)
		}
		c.synced = append(c.synced, cached.HasSynced)
	}
	return c, mgr.Add(onAllReplicas(c.run))
}

var podIndexes = informer.Indexes[*podView]{
	byGate: func(p *podView) []string {
		if p.Gated && p.Gates == 1 {
			return []string{theGate}
		}
		return nil
	},
	byName: func(p *podView) []string { return indexName(p.Namespace, p.For) },
}

var reservationIndexes = informer.Indexes[*reservation]{
	byPod:  func(r *reservation) []string { return []string{r.Namespace + "/" + r.Pod} },
	byName: func(r *reservation) []string { return indexName(r.Namespace, r.For) },
}

// listWatch returns the list and watch calls for a kind. They use protobuf if the API server
// supports it for the kind. narrow may restrict the objects.
func listWatch(mgr manager.Manager, kind schema.GroupVersionKind, resource string,
	narrow func(*metav1.ListOptions)) (*toolscache.ListWatch, error) {
	rest, err := apiutil.RESTClientForGVK(kind, false, false, mgr.GetConfig(),
		serializer.NewCodecFactory(mgr.GetScheme()), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource, err)
	}
	return toolscache.NewFilteredListWatchFromClient(rest, resource, metav1.NamespaceAll, narrow), nil
}

// watchAgain restarts the watches of pods and reservations. It is called if a watch may be stalled:
// a connection that is open but delivers nothing would otherwise not be noticed for minutes.
func (c *cluster) watchAgain() {
	c.pods.Restart()
	c.reservations.Restart()
}

// onAllReplicas is a Runnable that runs in every replica, leader or not.
type onAllReplicas func(context.Context) error

func (f onAllReplicas) Start(ctx context.Context) error { return f(ctx) }
func (onAllReplicas) NeedLeaderElection() bool          { return false }

func (c *cluster) run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, task := range c.tasks {
		wg.Go(func() { _ = task(ctx) })
	}
	forget := time.NewTicker(time.Minute)
	defer forget.Stop()
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return nil
		case <-forget.C:
			c.expireInstances()
		}
	}
}

// Synced reports whether pods, reservations, nodes and namespaces have been listed once.
func (c *cluster) Synced() bool {
	for _, synced := range c.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// podDeleted updates the remembered instance when a pod was deleted.
func (c *cluster) podDeleted(p *podView) {
	key := p.Namespace + "/" + p.Name
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := []string{key}
	delete(c.admitted, key)
	if p.For != "" {
		keys = append(keys, nameKey(p.Namespace, p.For))
		c.ended[keys[1]] = append(c.endedLately(keys[1]), p.Name)
	}
	for _, key := range keys {
		if t := c.instances[key].after(p, c.now()); t.Node != "" {
			c.instances[key] = t
		} else {
			delete(c.instances, key)
		}
	}
}

// reservationDeleted remembers that a reservation was deleted, because the window has ended or the
// addresses were released. Then choose does not wait for the reservation to be published. If an
// agent still has the lease, it publishes the reservation again.
func (c *cluster) reservationDeleted(r *reservation) {
	if r.PodUID == "" {
		return
	}
	key := r.Namespace + "/" + r.Pod
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.instances[key]
	if t.Node != "" && t.Node != r.Node {
		return // the last pod was on another node
	}
	t.Lost = podOnNode{r.PodUID, r.Node}
	if t.Node == "" {
		t.Until = c.now().Add(maxMemory)
	}
	c.instances[key] = t
}

// expireInstances forgets the instances whose time is over, except for those that are contested.
func (c *cluster) expireInstances() {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, t := range c.instances {
		if !now.After(t.Until) {
			continue
		}
		if p := c.pod(key); (p == nil || t.Lost.UID != string(p.UID)) && !c.contested(key, t) {
			delete(c.instances, key)
		}
	}
	for name := range c.ended {
		if c.ended[name] = c.endedLately(name); len(c.ended[name]) == 0 {
			delete(c.ended, name)
		}
	}
	maps.DeleteFunc(c.admitted, func(_ string, a admitted) bool { return now.Sub(a.at) >= admissionLag })
}

// endedLately returns the pods with a reservation name that ended less than publishLag ago. The
// caller holds c.mu.
func (c *cluster) endedLately(nameKey string) []string {
	namespace := namespaceOf(nameKey)
	return slices.DeleteFunc(slices.Clone(c.ended[nameKey]), func(pod string) bool {
		return c.now().Sub(c.instances[namespace+"/"+pod].Ended) >= publishLag
	})
}

// contested reports whether both the node of the last instance and another node have a reservation
// with the name of the pod. Such an instance is not forgotten, because nothing else shows which of
// the reservations is right.
func (c *cluster) contested(key string, t instance) bool {
	var last, other bool
	for _, r := range c.reservationsOf(key) {
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

// lastEnded returns the instance of the last pod with a name of which the watch has shown the
// deletion.
func (c *cluster) lastEnded(key string) instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instances[key]
}

func (c *cluster) pod(key string) *podView {
	p, _ := c.pods.Get(key)
	return p
}

// gatedPods returns the pods whose only gate is the gate of the pin.
func (c *cluster) gatedPods() []*podView { return c.pods.ByIndex(byGate, theGate) }

func (c *cluster) reservationsOf(key string) []*reservation {
	return c.reservations.ByIndex(byPod, key)
}

// targetsOf returns the nodes that have an address for a pod, the best first, and the last instance
// on each. For a pod without a reservation name that is at most one, as choose chooses it.
func (c *cluster) targetsOf(key, namespace, reservationName string) ([]pinTarget, []instance) {
	if reservationName != "" {
		return c.targets(namespace, reservationName, key)
	}
	last := c.last(key)
	p, found := choose(c.reservationsOf(key), last, c.now())
	if !found {
		return nil, nil
	}
	return []pinTarget{p}, []instance{last}
}

// node returns the node with a name, nil if it does not exist. It returns an error if the lookup
// failed.
func (c *cluster) node(ctx context.Context, name string) (*corev1.Node, error) {
	var n corev1.Node
	err := c.reader.Get(ctx, types.NamespacedName{Name: name}, &n)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &n, nil
}

// namespaceMode returns the mode that the label of a namespace sets for its pods, "" if there is
// none.
func (c *cluster) namespaceMode(ctx context.Context, name string) (string, error) {
	ns := namespaceMeta()
	if err := c.reader.Get(ctx, types.NamespacedName{Name: name}, ns); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	return ns.Labels[wellknown.AnnotationPin], nil
}

// modeOf returns the mode that applies to a pod: that in the annotation of the pod, else that in
// the label of its namespace, else the default of the cluster. It ignores an invalid mode and
// describes the error in note.
func modeOf(annotations map[string]string, namespace string, cluster policy.PinMode) (mode policy.PinMode,
	note string) {
	pod, found := annotations[wellknown.AnnotationPin]
	if found {
		mode, err := policy.ParsePinMode(pod)
		if err == nil {
			return mode, ""
		}
		note = err.Error()
	}
	if namespace != "" {
		mode, err := policy.ParsePinMode(namespace)
		if err == nil {
			return mode, note
		}
		if note == "" {
			note = "the namespace's " + err.Error()
		}
	}
	return cluster, note
}
