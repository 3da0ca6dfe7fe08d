package topology

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
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

// errUnknown is the answer while not everything has been listed for the first time, errNoKind where the API has no such
// kind.
var (
	errUnknown = errors.New("not everything has been listed yet")
	errNoKind  = errors.New("the API has no such kind")
)

// View is what a replica knows of the cluster. PersistentPodStates and workloads are watched where their CRDs are; pods
// from the first PersistentPodState on.
type View struct {
	kinds   Kinds
	sources *sources
	mapper  apimeta.RESTMapper
	nodes   client.Reader
	listed  func() bool // the nodes are
	leavers *Leavers
	sights  *Sights

	// What has to be looked at again.
	states  bell[types.NamespacedName]
	targets bell[Target]
	house   bell[struct{}]

	crds chan struct{} // a CRD came

	mu        sync.Mutex
	ctx       context.Context // of everything that is watched; nil before that
	began     time.Time
	known     bool // has been once
	crdList   *watched
	crdsGone  map[string]bool // of which the mapper may still know the kinds
	objects   *watched
	workloads map[schema.GroupKind]*watched
	pods      *watched
}

func newView(ctx context.Context, mgr manager.Manager, kinds Kinds, grace time.Duration) (*View, error) {
	v := &View{kinds: kinds, mapper: mgr.GetRESTMapper(), nodes: mgr.GetClient(), leavers: NewLeavers(grace), sights: NewSights(),
		crds: make(chan struct{}, 1), crdsGone: map[string]bool{}, workloads: map[schema.GroupKind]*watched{}}
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
		came: func(n *corev1.Node) {
			v.leavers.Came(n.Name)
			v.states.ring(v.on(n.Name)...)
		},
		changed: func(before, n *corev1.Node) {
			if !maps.Equal(before.Labels, n.Labels) { // nodes report often
				v.nodeLost(before)
			}
		},
		went: func(n *corev1.Node) { v.leavers.Went(n, time.Now()) },
	})
	return v, err
}

// looksSince is since when this replica sees nodes leave. One that it does not know may have left just before.
func (v *View) looksSince() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.began
}

// nodeLost has everything looked at that a node with these labels was of concern to.
func (v *View) nodeLost(n *corev1.Node) {
	v.states.ring(v.on(n.Name)...)
	for _, t := range v.sights.Waiting(n.Labels[corev1.LabelHostname]) {
		v.states.ring(v.of(t)...)
	}
}

// NeedLeaderElection: every replica looks.
func (v *View) NeedLeaderElection() bool { return false }

// Start watches until the manager ends.
func (v *View) Start(ctx context.Context) error {
	v.mu.Lock()
	v.ctx, v.began = ctx, time.Now()
	v.mu.Unlock()
	crds, err := v.sources.crds(ctx, events[*metav1.PartialObjectMetadata]{came: v.crdCame, went: v.crdWent})
	if err != nil {
		return fmt.Errorf("watching CRDs: %w", err)
	}
	v.mu.Lock()
	v.crdList = crds
	v.mu.Unlock()
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	// A CRD is there a moment before its resource is, and nobody says when that comes: every two seconds for half a minute
	// after a CRD, then every half minute.
	for tries := 0; ; {
		if tries < 15 || tries%15 == 0 {
			if err := v.watchKinds(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.crds:
			tries = 0
		case now := <-tick.C:
			tries++
			v.sights.Forget(now.Add(-memory))
			for _, n := range v.leavers.Over(now) {
				v.nodeLost(n)
			}
		}
	}
}

// watchKinds watches what is there and not watched yet. The API server may be slow to tell what is there: nobody waits for
// that but the caller.
func (v *View) watchKinds() error {
	for _, kind := range v.unwatched() {
		if resource, ok := v.resource(kind); ok {
			if err := v.watch(kind.GroupKind(), resource); err != nil {
				return err
			}
		}
	}
	return nil
}

var objectKind = pps.GroupVersion.WithKind("PersistentPodState")

func (v *View) unwatched() Kinds {
	v.mu.Lock()
	defer v.mu.Unlock()
	var kinds Kinds
	if v.objects == nil {
		kinds = append(kinds, objectKind)
	}
	for _, kind := range v.kinds {
		if v.workloads[kind.GroupKind()] == nil {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

func (v *View) watch(kind schema.GroupKind, resource schema.GroupVersionResource) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.crdsGone[resource.GroupResource().String()] {
		return nil
	}
	if kind == objectKind.GroupKind() {
		w, err := v.sources.objects(v.ctx, resource, events[*pps.PersistentPodState]{
			came: v.objectCame, changed: v.objectChanged, went: v.objectWent})
		v.objects = w
		return err
	}
	w, err := v.sources.workloads(v.ctx, resource, events[*workloadView]{
		came:    func(w *workloadView) { v.workloadMoved(w.workload) },
		changed: func(_, w *workloadView) { v.workloadMoved(w.workload) },
		went:    func(w *workloadView) { v.workloadWent(w.workload) },
	})
	v.workloads[kind] = w
	return err
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
	v.end(crd.Name, false, func(w *watched) bool { return !w.HasSynced() })
	select {
	case v.crds <- struct{}{}:
	default:
	}
	v.house.ring(struct{}{})
}

// crdWent ends the watch of its resource, whose objects are gone.
func (v *View) crdWent(crd *metav1.PartialObjectMetadata) {
	v.end(crd.Name, true, func(*watched) bool { return true })
	v.house.ring(struct{}{})
}

func (v *View) end(resource string, gone bool, which func(*watched) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if gone {
		v.crdsGone[resource] = true
	} else {
		delete(v.crdsGone, resource)
	}
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
	v.drop(w)
	v.workloadWent(w)
}

func (v *View) workloadWent(w *Workload) {
	v.targets.ring(w.Target)
	v.states.ring(v.of(w.Target)...)
}

// drop forgets where the pods were that a workload does not want any more.
func (v *View) drop(w *Workload) {
	if objects := v.Objects(w.Target); len(objects) > 0 {
		v.sights.Drop(w.Target, func(pod string) bool { return remembered(objects[0], w, pod) })
	}
}

// see takes note of a pod. It may have changed hands.
func (v *View) see(before, now *glance) {
	if before != nil && before.target != nil && (now == nil || now.target == nil || *now.target != *before.target) {
		v.sights.Miss(*before.target, before.Name, before.UID, time.Now())
		if w, err := v.Workload(*before.target); err == nil && w != nil {
			v.drop(w)
		}
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

// Ready tells whether this replica can look up what is known of a pod. Once it could it stays so, and after a minute it is as
// well as it will be: it has other work.
func (v *View) Ready(*http.Request) error {
	known := v.Known()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.crdList == nil {
		return errUnknown
	}
	if v.crdList.HasSynced() {
		_, there, _ := v.crdList.GetStore().GetByKey(crdName)
		v.known = v.known || known || !there
	}
	if v.known || time.Since(v.began) > time.Minute {
		return nil
	}
	return errUnknown
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
	switch {
	case w == nil:
		return nil, errNoKind
	case !w.HasSynced():
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
			for _, left := range v.leavers.All() {
				if left.Name == name {
					labels[name] = left.Labels
				}
			}
		case err != nil:
			return nil, fmt.Errorf("looking up node %s: %w", name, err)
		default:
			labels[name] = n.Labels
		}
	}
	return func(name string) (map[string]string, bool) { l, ok := labels[name]; return l, ok }, nil
}

// Choice are the nodes that count when a pod is bound: if its own selectors take the node where it was, that one, and else
// all.
func (v *View) Choice(ctx context.Context, pod *corev1.Pod, was string) ([]*corev1.Node, error) {
	var n corev1.Node
	err := v.nodes.Get(ctx, types.NamespacedName{Name: was}, &n)
	if err == nil && takes(pod, &n) {
		return []*corev1.Node{&n}, nil
	}
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("looking up node %s: %w", was, err)
	}
	return v.allNodes(ctx)
}

// allNodes are all nodes, which are not to be written to, and those that have just left.
func (v *View) allNodes(ctx context.Context, options ...client.ListOption) ([]*corev1.Node, error) {
	var list corev1.NodeList
	if err := v.nodes.List(ctx, &list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("looking up nodes: %w", err)
	}
	nodes := v.leavers.All()
	for i := range list.Items {
		nodes = append(nodes, &list.Items[i])
	}
	return nodes, nil
}

// Hosts tells whether a node has a hostname.
func (v *View) Hosts(ctx context.Context, hostname string) (bool, error) {
	nodes, err := v.allNodes(ctx, client.MatchingLabels{corev1.LabelHostname: hostname})
	return len(having(nodes, corev1.LabelHostname, hostname)) > 0, err
}
