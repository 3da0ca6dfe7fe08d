package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// memory is for how long the place of a pod that is gone is remembered without being recorded.
const memory = 15 * time.Minute

// errUnknown is the answer while not everything has been listed for the first time.
var errUnknown = errors.New("not everything has been listed yet")

// View is what a replica knows of the cluster. PersistentPodStates and workloads are watched where their CRDs are; pods
// from the first PersistentPodState on.
type View struct {
	kinds   Kinds
	sources *sources
	mapper  apimeta.RESTMapper
	nodes   client.Reader
	listed  func() bool // the nodes are
	sights  *Sights

	// What has to be looked at again.
	states  bell[types.NamespacedName]
	targets bell[Target]
	house   bell[struct{}]

	crds chan struct{} // a CRD came

	mu        sync.Mutex
	ctx       context.Context // of everything that is watched; nil before that
	objects   *watched
	workloads map[schema.GroupKind]*watched
	pods      *watched
}

func newView(ctx context.Context, mgr manager.Manager, kinds Kinds) (*View, error) {
	v := &View{kinds: kinds, mapper: mgr.GetRESTMapper(), nodes: mgr.GetClient(), sights: NewSights(),
		crds: make(chan struct{}, 1), workloads: map[schema.GroupKind]*watched{}}
	var err error
	if v.sources, err = newSources(mgr); err != nil {
		return nil, err
	}
	nodes, err := mgr.GetCache().GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	v.listed = nodes.HasSynced
	_, err = nodes.AddEventHandler(events[*corev1.Node]{
		came: func(n *corev1.Node) { v.states.ring(v.on(n.Name)...) },
		changed: func(before, n *corev1.Node) {
			if !maps.Equal(before.Labels, n.Labels) { // nodes report often
				v.states.ring(v.on(n.Name)...)
			}
		},
		went: func(n *corev1.Node) { v.states.ring(v.on(n.Name)...) },
	})
	return v, err
}

// NeedLeaderElection: every replica looks.
func (v *View) NeedLeaderElection() bool { return false }

// Start watches until the manager ends.
func (v *View) Start(ctx context.Context) error {
	v.mu.Lock()
	v.ctx = ctx
	v.mu.Unlock()
	_, err := v.sources.crds(ctx, events[*metav1.PartialObjectMetadata]{came: v.crdCame, went: v.crdWent})
	if err != nil {
		return fmt.Errorf("watching CRDs: %w", err)
	}
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	// A CRD is there a moment before its resource is.
	for tries := 0; ; tries++ {
		if tries < 15 {
			if err := v.watchKinds(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.crds:
			tries = -1
		case now := <-tick.C:
			v.sights.Forget(now.Add(-memory))
		}
	}
}

// watchKinds watches what is there and not watched yet.
func (v *View) watchKinds() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.objects == nil {
		if resource, ok := v.resource(pps.GroupVersion.WithKind("PersistentPodState")); ok {
			w, err := v.sources.objects(v.ctx, resource, events[*pps.PersistentPodState]{
				came: v.objectCame, changed: v.objectChanged, went: v.objectWent})
			if err != nil {
				return err
			}
			v.objects = w
		}
	}
	for _, kind := range v.kinds {
		if v.workloads[kind.GroupKind()] != nil {
			continue
		}
		if resource, ok := v.resource(kind); ok {
			w, err := v.sources.workloads(v.ctx, resource, events[*workloadView]{
				came:    func(w *workloadView) { v.workloadMoved(w.workload) },
				changed: func(_, w *workloadView) { v.workloadMoved(w.workload) },
				went:    func(w *workloadView) { v.workloadMoved(w.workload) },
			})
			if err != nil {
				return err
			}
			v.workloads[kind.GroupKind()] = w
		}
	}
	return nil
}

// resource finds what the API serves for a kind; another version will do.
func (v *View) resource(kind schema.GroupVersionKind) (schema.GroupVersionResource, bool) {
	mapping, err := v.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		mapping, err = v.mapper.RESTMapping(kind.GroupKind())
	}
	if err != nil {
		return schema.GroupVersionResource{}, false
	}
	return mapping.Resource, true
}

// crdCame has its resource watched. A watch that has found nothing so far begins anew: it would wait longer and longer.
func (v *View) crdCame(crd *metav1.PartialObjectMetadata) {
	v.end(crd.Name, func(w *watched) bool { return !w.HasSynced() })
	select {
	case v.crds <- struct{}{}:
	default:
	}
	v.house.ring(struct{}{})
}

// crdWent ends the watch of its resource, whose objects are gone.
func (v *View) crdWent(crd *metav1.PartialObjectMetadata) {
	v.end(crd.Name, func(*watched) bool { return true })
	v.house.ring(struct{}{})
}

func (v *View) end(resource string, which func(*watched) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.objects; w != nil && w.resource == resource && which(w) {
		w.stop()
		v.objects = nil
	}
	for kind, w := range v.workloads {
		if w.resource == resource && which(w) {
			w.stop()
			delete(v.workloads, kind)
		}
	}
}

// watchPods begins with the first PersistentPodState.
func (v *View) watchPods() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pods != nil {
		return
	}
	w, err := v.sources.pods(v.ctx, v.kinds, events[*glance]{
		came: func(g *glance) { v.see(nil, g) },
		changed: func(before, now *glance) {
			v.see(before, now)
		},
		went: func(g *glance) { v.see(g, nil) },
	})
	if err == nil { // it can only fail for a programmer's mistake
		v.pods = w
	}
}

func (v *View) objectCame(o *pps.PersistentPodState) {
	v.watchPods()
	v.objectChanged(o, o)
	v.house.ring(struct{}{})
}

func (v *View) objectChanged(_, o *pps.PersistentPodState) {
	v.states.ring(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
	v.targets.ring(targetOf(o))
}

func (v *View) objectWent(o *pps.PersistentPodState) {
	v.targets.ring(targetOf(o))
	v.states.ring(v.of(targetOf(o))...) // another one may take its place
	v.house.ring(struct{}{})
}

func (v *View) workloadMoved(w *Workload) {
	v.targets.ring(w.Target)
	v.states.ring(v.of(w.Target)...)
}

// see takes note of a pod. It may have changed hands.
func (v *View) see(before, now *glance) {
	if before != nil && before.target != nil && (now == nil || now.target == nil || *now.target != *before.target) {
		v.sights.Miss(*before.target, before.Name, before.UID, time.Now())
		v.states.ring(v.of(*before.target)...)
	}
	if now != nil && now.target != nil {
		v.sights.See(*now.target, now.Name, now.seen)
		v.states.ring(v.of(*now.target)...)
	}
}

// informer is the one of PersistentPodStates; nil while there is none.
func (v *View) informer() *watched {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.objects
}

// Known tells whether everything that is watched has been listed.
func (v *View) Known() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.objects != nil && v.objects.HasSynced() && v.listed()
}

// PodsKnown tells it of the pods.
func (v *View) PodsKnown() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.pods != nil && v.pods.HasSynced()
}

func (v *View) indexed(index, value string) []*pps.PersistentPodState {
	w := v.informer()
	if w == nil {
		return nil
	}
	list, _ := w.GetIndexer().ByIndex(index, value) // an error says that there is no such index
	var objects []*pps.PersistentPodState
	for _, o := range list {
		objects = append(objects, o.(*pps.PersistentPodState))
	}
	return objects
}

// Objects are the PersistentPodStates of a workload. The first is the one that counts.
func (v *View) Objects(t Target) []*pps.PersistentPodState {
	objects := v.indexed(byTarget, t.String())
	slices.SortFunc(objects, func(a, b *pps.PersistentPodState) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return objects
}

func (v *View) of(t Target) []types.NamespacedName { return keys(v.indexed(byTarget, t.String())) }

func (v *View) on(node string) []types.NamespacedName { return keys(v.indexed(byNode, node)) }

func keys(objects []*pps.PersistentPodState) []types.NamespacedName {
	var keys []types.NamespacedName
	for _, o := range objects {
		keys = append(keys, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
	}
	return keys
}

// Object is a PersistentPodState by its name; nil if there is none.
func (v *View) Object(key types.NamespacedName) *pps.PersistentPodState {
	w := v.informer()
	if w == nil {
		return nil
	}
	o, found, err := w.GetStore().GetByKey(key.String())
	if err != nil || !found {
		return nil
	}
	return o.(*pps.PersistentPodState)
}

// Count is how many PersistentPodStates there are.
func (v *View) Count() int {
	if w := v.informer(); w != nil {
		return len(w.GetStore().ListKeys())
	}
	return 0
}

// Workload is a workload; nil if it is gone. An error says that nobody knows.
func (v *View) Workload(t Target) (*Workload, error) {
	v.mu.Lock()
	w := v.workloads[t.Kind]
	v.mu.Unlock()
	if w == nil || !w.HasSynced() {
		return nil, errUnknown
	}
	o, found, err := w.GetStore().GetByKey(t.Namespace + "/" + t.Name)
	if err != nil || !found {
		return nil, err
	}
	return o.(*workloadView).workload, nil
}

func (v *View) allStates() []types.NamespacedName {
	w := v.informer()
	if w == nil {
		return nil
	}
	var all []types.NamespacedName
	for _, o := range w.GetStore().List() {
		all = append(all, keys([]*pps.PersistentPodState{o.(*pps.PersistentPodState)})...)
	}
	return all
}

func (v *View) allTargets() []Target {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []Target
	for _, w := range v.workloads {
		for _, o := range w.GetStore().List() {
			all = append(all, o.(*workloadView).workload.Target)
		}
	}
	return all
}

// Nodes looks nodes up. An error says that it is not known of one whether it exists.
func (v *View) Nodes(ctx context.Context, names ...string) (Nodes, error) {
	if !v.listed() {
		return nil, errUnknown
	}
	labels := map[string]map[string]string{}
	for _, name := range names {
		var n corev1.Node
		err := v.nodes.Get(ctx, types.NamespacedName{Name: name}, &n)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("looking up node %s: %w", name, err)
		default:
			labels[name] = n.Labels
		}
	}
	return func(name string) (map[string]string, bool) { l, ok := labels[name]; return l, ok }, nil
}

// Hosts tells whether a node has a hostname.
func (v *View) Hosts(ctx context.Context, hostname string) (bool, error) {
	var nodes corev1.NodeList
	err := v.nodes.List(ctx, &nodes, client.MatchingLabels{corev1.LabelHostname: hostname})
	return len(nodes.Items) > 0, err
}
