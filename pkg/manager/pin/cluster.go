package pin

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// The indexes of the informers.
const (
	byPod   = "pod"   // reservations by "namespace/pod"
	byGate  = "gate"  // the pods that nothing but our gate holds back
	theGate = "gated" // its only value
)

// CacheOptions is what the manager's cache may hold of what this room reads through it.
func CacheOptions() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Node{}:  {Transform: trimNode},
		namespaceMeta(): {Transform: trimNamespace},
	}
}

func namespaceMeta() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}

// A cluster is what the manager knows of the cluster: informers, and the memory of pods that have ended. Every replica
// has its own.
type cluster struct {
	reader       client.Reader // of nodes and namespaces, from the manager's cache
	pods         toolscache.SharedIndexInformer
	reservations toolscache.SharedIndexInformer
	watches      []*restartable
	synced       []func() bool
	now          func() time.Time

	mu     sync.Mutex
	traces map[string]trace // by "namespace/pod"
}

func newCluster(ctx context.Context, mgr manager.Manager, now func() time.Time) (*cluster, error) {
	c := &cluster{reader: mgr.GetClient(), now: now, traces: map[string]trace{}}
	var err error
	c.pods, err = c.watch(mgr, corev1.SchemeGroupVersion.WithKind("Pod"), "pods", &corev1.Pod{},
		func(o *metav1.ListOptions) { o.LabelSelector = wellknown.LabelRetained }, viewPod, podIndexers())
	if err != nil {
		return nil, err
	}
	c.reservations, err = c.watch(mgr, ipam.GroupVersion.WithKind("IPReservation"), ipam.Resource.Resource, &ipam.IPReservation{},
		func(*metav1.ListOptions) {}, viewReservation, reservationIndexers())
	if err != nil {
		return nil, err
	}
	if _, err := c.pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: c.remember}); err != nil {
		return nil, err
	}
	if _, err := c.reservations.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: c.lose}); err != nil {
		return nil, err
	}
	c.synced = []func() bool{c.pods.HasSynced, c.reservations.HasSynced}
	for _, object := range []client.Object{&corev1.Node{}, namespaceMeta()} {
		informer, err := mgr.GetCache().GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watching %T: %w", object, err)
		}
		c.synced = append(c.synced, informer.HasSynced)
	}
	return c, mgr.Add(everywhere(c.run))
}

func podIndexers() toolscache.Indexers {
	return toolscache.Indexers{byGate: func(object any) ([]string, error) {
		if p := object.(*podView); p.Gated && p.Gates == 1 {
			return []string{theGate}, nil
		}
		return nil, nil
	}}
}

func reservationIndexers() toolscache.Indexers {
	return toolscache.Indexers{byPod: func(object any) ([]string, error) {
		r := object.(*reservation)
		return []string{r.Namespace + "/" + r.Pod}, nil
	}}
}

// watch makes an informer that keeps views, and whose watch can be restarted.
func (c *cluster) watch(mgr manager.Manager, kind schema.GroupVersionKind, resource string, example runtime.Object,
	narrow func(*metav1.ListOptions), view toolscache.TransformFunc, indexers toolscache.Indexers) (toolscache.SharedIndexInformer, error) {
	rest, err := apiutil.RESTClientForGVK(kind, false, false, mgr.GetConfig(), serializer.NewCodecFactory(mgr.GetScheme()), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource, err)
	}
	lw := toolscache.NewFilteredListWatchFromClient(rest, resource, metav1.NamespaceAll, narrow)
	w := &restartable{begin: lw.WatchFuncWithContext}
	lw.WatchFuncWithContext = w.watch
	c.watches = append(c.watches, w)
	informer := toolscache.NewSharedIndexInformerWithOptions(lw, example, toolscache.SharedIndexInformerOptions{
		Indexers: indexers, ObjectDescription: resource})
	return informer, informer.SetTransform(view)
}

// A restartable is the watch of an informer.
type restartable struct {
	begin toolscache.WatchFuncWithContext

	mu      sync.Mutex
	current watch.Interface
}

func (r *restartable) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := r.begin(ctx, o)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.current = w
	}
	return w, err
}

// restart ends the watch. The informer begins another one where this one ended.
func (r *restartable) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		r.current.Stop()
	}
}

// watchAgain restarts the watches: an open one that shows nothing would be believed for minutes.
func (c *cluster) watchAgain() {
	for _, w := range c.watches {
		w.restart()
	}
}

// everywhere is work that every replica does, leader or not.
type everywhere func(context.Context) error

func (f everywhere) Start(ctx context.Context) error { return f(ctx) }
func (everywhere) NeedLeaderElection() bool          { return false }

func (c *cluster) run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, informer := range []toolscache.SharedIndexInformer{c.pods, c.reservations} {
		wg.Go(func() { informer.RunWithContext(ctx) })
	}
	forget := time.NewTicker(time.Minute)
	defer forget.Stop()
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return nil
		case <-forget.C:
			c.forget()
		}
	}
}

// Synced reports whether the first look at everything is over.
func (c *cluster) Synced() bool {
	for _, synced := range c.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// remember keeps where a pod was after it has ended.
func (c *cluster) remember(object any) {
	p := ended[podView](object)
	if p == nil {
		return
	}
	key := p.Namespace + "/" + p.Name
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.traces[key].follow(p, c.now()); t.Node != "" {
		c.traces[key] = t
	} else {
		delete(c.traces, key)
	}
}

// lose remembers that nothing waits for a pod any more, once its reservation is deleted: be it over or given up, be the pod
// still there or not. An agent that has it all the same publishes it again.
func (c *cluster) lose(object any) {
	r := ended[reservation](object)
	if r == nil || r.PodUID == "" {
		return
	}
	key := r.Namespace + "/" + r.Pod
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.traces[key]
	t.Lost = r.PodUID
	if t.Node == "" {
		t.Until = c.now().Add(memoryLife)
	}
	c.traces[key] = t
}

// ended is the last that an informer has seen of what is gone.
func ended[View any](object any) *View {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	v, _ := object.(*View)
	return v
}

func (c *cluster) forget() {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, t := range c.traces {
		if !now.After(t.Until) {
			continue
		}
		if p := c.pod(key); p == nil || t.Lost != string(p.UID) {
			delete(c.traces, key)
		}
	}
}

// last is what is known of a pod's last instance. One that has not been seen to end counts as ended now: a pod of its name
// is being made.
func (c *cluster) last(key string) trace {
	t := c.remembered(key)
	if p := c.pod(key); p != nil {
		t = t.follow(p, c.now())
	}
	return t
}

// remembered is what is known of a pod's last instance that has been seen to end.
func (c *cluster) remembered(key string) trace {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.traces[key]
}

func (c *cluster) pod(key string) *podView {
	object, found, err := c.pods.GetStore().GetByKey(key)
	if err != nil || !found {
		return nil
	}
	return object.(*podView)
}

// gatedPods are the pods that wait for us alone.
func (c *cluster) gatedPods() []any {
	list, _ := c.pods.GetIndexer().ByIndex(byGate, theGate) // an error says that there is no such index
	return list
}

func (c *cluster) reservationsOf(key string) []*reservation {
	list, _ := c.reservations.GetIndexer().ByIndex(byPod, key)
	all := make([]*reservation, len(list))
	for i, object := range list {
		all[i] = object.(*reservation)
	}
	return all
}

// place is where a pod's addresses are, and what is remembered of the pod.
func (c *cluster) place(key string) (place, trace, bool) {
	last := c.last(key)
	p, found := choose(c.reservationsOf(key), last, c.now())
	return p, last, found
}

// node is a node by its name; nil if there is none. That it cannot be looked up is an error.
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

// namespaceMode is the mode that a namespace says for its pods; "" if it says none.
func (c *cluster) namespaceMode(ctx context.Context, name string) (string, error) {
	ns := namespaceMeta()
	if err := c.reader.Get(ctx, types.NamespacedName{Name: name}, ns); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	return ns.Labels[wellknown.AnnotationPin], nil
}

// modeOf is the mode that applies to a pod: its own annotation, else its namespace's label, else the cluster's. A word
// that is none is passed over, and the note says so.
func modeOf(annotations map[string]string, namespace string, cluster policy.PinMode) (mode policy.PinMode, note string) {
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
