package persistentpodstate

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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// historyAge is how long the history of a deleted pod is kept.
const historyAge = 15 * time.Minute

var (
	errNotSynced = errors.New("the informers have not synced yet")
	errNoKind    = errors.New("the API server does not serve this kind")
)

// clusterView is what this replica observes of the cluster. It watches PersistentPodStates and
// workloads as soon as their CRDs exist, and pods as soon as there is a PersistentPodState.
type clusterView struct {
	kinds       kindList
	sources     *sources
	mapper      apimeta.RESTMapper
	nodes       client.Reader
	nodesSynced func() bool
	departed    *departedNodes
	history     *history

	// The workqueues of the recorder, the generator and the installer, in this order.
	states  enqueuer[types.NamespacedName]
	targets enqueuer[targetKey]
	cluster enqueuer[struct{}]

	crds chan struct{} // receives a value when a CRD was added

	mu        sync.Mutex
	ctx       context.Context // of all watches; nil before Start
	startedAt time.Time
	wasReady  bool
	crdList   *watched[string]
	crdsGone  map[string]bool // deleted CRDs; the mapper may still know their kinds
	objects   *watched[*pps.PersistentPodState]
	workloads map[schema.GroupKind]*watched[*workload]
	pods      *watched[*podView]

	outdated workqueue.TypedInterface[string] // the namespaces whose pods need other views, see refresh
}

// newView returns a view that Start has to be called on. grace is how long a removed node counts as
// present.
func newView(ctx context.Context, mgr manager.Manager, kinds kindList, grace time.Duration) (*clusterView, error) {
	v := &clusterView{kinds: kinds, mapper: mgr.GetRESTMapper(), nodes: mgr.GetClient(),
		departed: newDepartedNodes(grace),
		history:  newHistory(),
		crds:     make(chan struct{}, 1), crdsGone: map[string]bool{}, outdated: workqueue.NewTyped[string](),
		workloads: map[schema.GroupKind]*watched[*workload]{}}
	var err error
	if v.sources, err = newSources(mgr); err != nil {
		return nil, err
	}
	nodes, err := mgr.GetCache().GetInformer(ctx, &corev1.Node{}, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	v.nodesSynced = nodes.HasSynced
	_, err = nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			n := object.(*corev1.Node)
			v.departed.Added(n.Name)
			v.states.enqueue(v.statesOnNode(n.Name)...)
		},
		UpdateFunc: func(before, now any) {
			b, n := before.(*corev1.Node), now.(*corev1.Node)
			// Most updates of a node change neither.
			if !maps.Equal(b.Labels, n.Labels) || !notReadySince(b).Equal(notReadySince(n)) {
				v.nodeGone(b)
			}
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if n, ok := object.(*corev1.Node); ok {
				v.departed.Removed(n, time.Now())
			}
		},
	})
	return v, err
}

// watchingSince returns the time from which this replica has observed the removal of nodes. A node
// that is not present may have been removed before that time.
func (v *clusterView) watchingSince() time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.startedAt
}

// nodeGone enqueues the PersistentPodStates that have recorded the node, and those with a pod that
// waits for its hostname.
func (v *clusterView) nodeGone(n *corev1.Node) {
	v.states.enqueue(v.statesOnNode(n.Name)...)
	for _, t := range v.history.Waiting(n.Labels[corev1.LabelHostname]) {
		v.states.enqueue(v.statesOf(t)...)
	}
}

// NeedLeaderElection returns false: the view runs in every replica.
func (v *clusterView) NeedLeaderElection() bool { return false }

// Start runs the watches until ctx is done. It also expires the histories of deleted pods and of
// removed nodes.
func (v *clusterView) Start(ctx context.Context) error {
	v.mu.Lock()
	v.ctx, v.startedAt = ctx, time.Now()
	v.crdList = v.sources.crds(ctx, informer.Handler[string]{Added: v.crdAdded, Deleted: v.crdDeleted})
	v.mu.Unlock()
	var refreshing sync.WaitGroup
	defer refreshing.Wait()
	defer v.outdated.ShutDown()
	refreshing.Go(func() {
		for v.refresh(ctx) && notify.Wait(ctx, nil, refreshInterval) {
		}
	})
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for ticks := 0; ; {
		if isDiscoveryDue(ticks) {
			v.watchKinds()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-v.crds:
			ticks = 0
		case now := <-tick.C:
			ticks++
			v.history.Expire(now.Add(-historyAge))
			for _, n := range v.departed.Expire(now) {
				v.nodeGone(n)
			}
		}
	}
}

// isDiscoveryDue reports whether to look for new kinds. ticks is the number of ticks of two seconds
// since a CRD was added. The API server begins to serve the resource of a new CRD some time later
// and sends no event then. So isDiscoveryDue reports true at each tick for 40 seconds, then every
// half minute.
func isDiscoveryDue(ticks int) bool { return ticks < 20 || ticks%15 == 0 }

// watchKinds starts the watches of the kinds that are served and not watched yet. It does not hold
// v.mu during discovery, because discovery may be slow.
func (v *clusterView) watchKinds() {
	for _, kind := range v.unwatched() {
		if resource, ok := v.resource(kind); ok {
			v.watch(kind.GroupKind(), resource)
		}
	}
}

var objectKind = pps.GroupVersion.WithKind("PersistentPodState")

// unwatched returns the kinds that have no watch.
func (v *clusterView) unwatched() kindList {
	v.mu.Lock()
	defer v.mu.Unlock()
	var kinds kindList
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

// watch starts the watch of a kind, unless the CRD of the resource was deleted.
func (v *clusterView) watch(kind schema.GroupKind, resource schema.GroupVersionResource) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.crdsGone[resource.GroupResource().String()]: // the mapper has not noticed the deletion
	case kind == objectKind.GroupKind():
		v.objects = v.sources.objects(v.ctx, resource, informer.Handler[*pps.PersistentPodState]{
			Added: v.objectAdded, Updated: v.objectUpdated, Deleted: v.objectDeleted})
	default:
		v.workloads[kind] = v.sources.workloads(v.ctx, resource, informer.Handler[*workload]{
			Added:   v.workloadUpdated,
			Updated: func(_, w *workload) { v.workloadUpdated(w) },
			Deleted: v.workloadDeleted,
		})
	}
}

// resource returns the resource of a kind, in the version of the kind if possible. The versions of
// a new CRD are served one after the other. So resource returns another served version only if the
// CRD says that the version of the kind will not be served. It reports false if there is no
// resource to watch yet.
func (v *clusterView) resource(kind schema.GroupVersionKind) (schema.GroupVersionResource, bool) {
	mapping, err := v.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err == nil {
		return mapping.Resource, true
	}
	if mapping, err = v.mapper.RESTMapping(kind.GroupKind()); err != nil {
		return schema.GroupVersionResource{}, false
	}
	v.mu.Lock()
	ctx := v.ctx
	v.mu.Unlock()
	serves, err := v.sources.serves(ctx, mapping.Resource.GroupResource().String(), kind.Version)
	return mapping.Resource, err == nil && !serves
}

// crdAdded causes the watch of the CRD's resource to be started. A watch that has not synced is
// stopped first, because the new CRD may serve other versions.
func (v *clusterView) crdAdded(crd string) {
	v.stopWatch(crd, false, func(synced bool) bool { return !synced })
	select {
	case v.crds <- struct{}{}:
	default:
	}
	v.cluster.enqueue(struct{}{})
}

// crdDeleted stops the watch of the CRD's resource. The objects of the CRD were deleted with it.
func (v *clusterView) crdDeleted(crd string) {
	v.stopWatch(crd, true, func(bool) bool { return true })
	v.cluster.enqueue(struct{}{})
}

// stopWatch stops the watch of a resource if which reports true. which is called with whether the
// informer has synced. gone is whether the CRD was deleted.
func (v *clusterView) stopWatch(resource string, gone bool, which func(synced bool) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if gone {
		v.crdsGone[resource] = true
	} else {
		delete(v.crdsGone, resource)
	}
	if w := v.objects; w != nil && w.resource == resource && which(w.HasSynced()) {
		w.stop()
		v.objects = nil
	}
	for kind, w := range v.workloads {
		if w.resource == resource && which(w.HasSynced()) {
			w.stop()
			delete(v.workloads, kind)
		}
	}
}

// watchPods starts the watch of pods, unless it is running. It is called when a PersistentPodState
// is added.
func (v *clusterView) watchPods() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pods != nil {
		return
	}
	v.pods = v.sources.pods(v.ctx, v.kinds, v.recordedKeys, informer.Handler[*podView]{
		Added:   func(now *podView) { v.observe(nil, now) },
		Updated: v.observe,
		Deleted: func(last *podView) { v.observe(last, nil) },
	})
}

func (v *clusterView) objectAdded(o *pps.PersistentPodState) {
	v.watchPods()
	v.objectUpdated(&pps.PersistentPodState{}, o)
	v.cluster.enqueue(struct{}{})
}

func (v *clusterView) objectUpdated(before, o *pps.PersistentPodState) {
	known := annotationsOf(before)
	if slices.ContainsFunc(annotationsOf(o), func(key string) bool { return !slices.Contains(known, key) }) {
		v.outdated.Add(o.Namespace)
	}
	v.states.enqueue(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
	v.targets.enqueue(targetOf(o))
}

// recordedKeys returns the keys of the annotations that are recorded of the pods of a workload.
func (v *clusterView) recordedKeys(t targetKey) (keys []string) {
	for _, o := range v.indexed(byTarget, t.String()) {
		keys = append(keys, annotationsOf(o)...)
	}
	return keys
}

// refreshInterval is the least time between two calls of refresh, so that whoever changes
// PersistentPodStates has few pods listed.
const refreshInterval = time.Second

// refresh waits until a PersistentPodState names another annotation, and reads the pods of its
// namespace, because their views do not have that annotation. It reports false when the queue is
// shut down.
func (v *clusterView) refresh(ctx context.Context) bool {
	namespace, stop := v.outdated.Get()
	if stop {
		return false
	}
	defer v.outdated.Done(namespace)
	v.mu.Lock()
	pods := v.pods
	v.mu.Unlock()
	if pods == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	err := v.sources.eachPod(ctx, v.kinds, namespace, func(p *corev1.Pod) error { return pods.Refresh(p) })
	if err != nil {
		v.outdated.Add(namespace)
	}
	return true
}

// refreshTimeout is the time limit for reading the pods of a namespace.
const refreshTimeout = 30 * time.Second

func (v *clusterView) objectDeleted(o *pps.PersistentPodState) {
	v.targets.enqueue(targetOf(o))
	v.states.enqueue(v.statesOf(targetOf(o))...) // a PersistentPodState with the same target may take effect now
	v.cluster.enqueue(struct{}{})
}

func (v *clusterView) workloadUpdated(w *workload) {
	v.prune(w)
	v.workloadDeleted(w)
}

func (v *clusterView) workloadDeleted(w *workload) {
	v.targets.enqueue(w.targetKey)
	v.states.enqueue(v.statesOf(w.targetKey)...)
}

// prune removes the histories of deleted pods that the workload is not expected to recreate.
func (v *clusterView) prune(w *workload) {
	if objects := v.Objects(w.targetKey); len(objects) > 0 {
		v.history.Prune(w.targetKey, func(pod string) bool { return isExpected(objects[0], w, pod) })
	}
}

// observe updates the history when a pod has changed from before to now. before is nil if the pod
// is new, now is nil if the pod was deleted, and both are nil where no workload of the configured
// kinds controls the pod. The controller of the pod may have changed.
func (v *clusterView) observe(before, now *podView) {
	if before != nil && (now == nil || now.target != before.target) {
		v.history.Deleted(before.target, before.name, before.seen.UID, time.Now())
		if w, err := v.Workload(before.target); err == nil && w != nil {
			v.prune(w)
		}
		v.states.enqueue(v.statesOf(before.target)...)
	}
	if now != nil {
		v.history.Observe(now.target, now.name, now.seen)
		v.states.enqueue(v.statesOf(now.target)...)
	}
}

// informer returns the informer of PersistentPodStates. It returns nil while it is not running.
func (v *clusterView) informer() *watched[*pps.PersistentPodState] {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.objects
}

// Ready is a readiness check. It returns an error until the informers have synced for the first
// time, or the cluster has no CRD of PersistentPodState. One minute after Start it returns nil in
// any case, because the replica has to serve the other webhooks.
func (v *clusterView) Ready(*http.Request) error {
	synced := v.HasSynced()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.crdList == nil {
		return errNotSynced
	}
	if v.crdList.HasSynced() {
		_, exists := v.crdList.Get(crdName)
		v.wasReady = v.wasReady || synced || !exists
	}
	if v.wasReady || time.Since(v.startedAt) > time.Minute {
		return nil
	}
	return errNotSynced
}

// HasSynced reports whether the informers of PersistentPodStates and nodes have synced.
func (v *clusterView) HasSynced() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.objects != nil && v.objects.HasSynced() && v.nodesSynced()
}

// PodsSynced reports whether the informer of pods has synced.
func (v *clusterView) PodsSynced() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.pods != nil && v.pods.HasSynced()
}

func (v *clusterView) indexed(index, value string) []*pps.PersistentPodState {
	if w := v.informer(); w != nil {
		return w.ByIndex(index, value)
	}
	return nil
}

// Objects returns the PersistentPodStates whose target is t, sorted by creation time, then by name.
// The controllers use only the first, and ignore the others.
func (v *clusterView) Objects(t targetKey) []*pps.PersistentPodState {
	objects := v.indexed(byTarget, t.String())
	slices.SortFunc(objects, func(a, b *pps.PersistentPodState) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return objects
}

func (v *clusterView) statesOf(t targetKey) []types.NamespacedName {
	return keys(v.indexed(byTarget, t.String()))
}

func (v *clusterView) statesOnNode(node string) []types.NamespacedName {
	return keys(v.indexed(byNode, node))
}

func keys(objects []*pps.PersistentPodState) []types.NamespacedName {
	var keys []types.NamespacedName
	for _, o := range objects {
		keys = append(keys, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
	}
	return keys
}

// Object returns the PersistentPodState with the given key, nil if there is none.
func (v *clusterView) Object(key types.NamespacedName) *pps.PersistentPodState {
	w := v.informer()
	if w == nil {
		return nil
	}
	o, _ := w.Get(key.String())
	return o
}

// Count returns the number of PersistentPodStates.
func (v *clusterView) Count() int {
	if w := v.informer(); w != nil {
		return len(w.List())
	}
	return 0
}

// Workload returns the workload with the given key, nil if it does not exist. It returns errNoKind
// or errNotSynced if it is not known whether the workload exists.
func (v *clusterView) Workload(t targetKey) (*workload, error) {
	v.mu.Lock()
	w := v.workloads[t.Kind]
	v.mu.Unlock()
	switch {
	case w == nil:
		return nil, errNoKind
	case !w.HasSynced():
		return nil, errNotSynced
	}
	workload, _ := w.Get(t.Namespace + "/" + t.Name)
	return workload, nil
}

func (v *clusterView) allStates() []types.NamespacedName {
	if w := v.informer(); w != nil {
		return keys(w.List())
	}
	return nil
}

func (v *clusterView) allTargets() []targetKey {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []targetKey
	for _, w := range v.workloads {
		for _, workload := range w.List() {
			all = append(all, workload.targetKey)
		}
	}
	return all
}

// Nodes returns a lookup of the labels of the nodes with the given names. Nodes that were removed
// less than the grace period ago are included. It returns an error if it is not known whether one
// of the nodes exists.
func (v *clusterView) Nodes(ctx context.Context, names ...string) (nodeLabels, error) {
	if !v.nodesSynced() {
		return nil, errNotSynced
	}
	labels := map[string]map[string]string{}
	for _, name := range names {
		var n corev1.Node
		err := v.nodes.Get(ctx, types.NamespacedName{Name: name}, &n)
		switch {
		case apierrors.IsNotFound(err):
			for _, left := range v.departed.All() {
				if left.Name == name {
					labels[name] = left.Labels
				}
			}
		case err != nil:
			return nil, fmt.Errorf("getting node %s: %w", name, err)
		default:
			labels[name] = n.Labels
		}
	}
	return func(name string) (map[string]string, bool) { l, ok := labels[name]; return l, ok }, nil
}

// NodesToCheck returns the nodes against which the required labels of a pod are checked. was is the
// name of the pod's former node. If the pod's own selectors match that node, it suffices and is the
// only one returned. Otherwise NodesToCheck returns all nodes.
func (v *clusterView) NodesToCheck(ctx context.Context, pod *corev1.Pod, was string) ([]*corev1.Node, error) {
	var n corev1.Node
	err := v.nodes.Get(ctx, types.NamespacedName{Name: was}, &n)
	if err == nil && matches(pod, &n) {
		return []*corev1.Node{&n}, nil
	}
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("getting node %s: %w", was, err)
	}
	return v.allNodes(ctx)
}

// allNodes returns all nodes that match the options, and the nodes that were removed less than the
// grace period ago, whether or not they match. The caller must not modify the nodes.
func (v *clusterView) allNodes(ctx context.Context, options ...client.ListOption) ([]*corev1.Node, error) {
	var list corev1.NodeList
	if err := v.nodes.List(ctx, &list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	nodes := v.departed.All()
	for i := range list.Items {
		nodes = append(nodes, &list.Items[i])
	}
	return nodes, nil
}

// notReadySince returns since when a node has not been ready. It returns zero if it is ready, or
// has no such condition yet.
func notReadySince(n *corev1.Node) time.Time {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// isGivenUp reports whether a node has not been ready for longer than the patience of a pod.
func (v *clusterView) isGivenUp(ctx context.Context, node string, patience lease.Window) (bool, error) {
	if patience == lease.Forever {
		return false, nil
	}
	var n corev1.Node
	err := v.nodes.Get(ctx, types.NamespacedName{Name: node}, &n)
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	since := notReadySince(&n)
	return !since.IsZero() && time.Since(since) >= time.Duration(patience), nil
}

// HostNotReadySince returns since when no node with the given hostname has been ready. It returns
// zero if one is ready, or none exists.
func (v *clusterView) HostNotReadySince(ctx context.Context, hostname string) (last time.Time, err error) {
	nodes, err := v.allNodes(ctx, client.MatchingLabels{corev1.LabelHostname: hostname})
	for _, n := range having(nodes, corev1.LabelHostname, hostname) {
		since := notReadySince(n)
		if since.IsZero() {
			return since, err
		}
		if since.After(last) {
			last = since
		}
	}
	return last, err
}

// HostExists reports whether a node has the given hostname.
func (v *clusterView) HostExists(ctx context.Context, hostname string) (bool, error) {
	nodes, err := v.allNodes(ctx, client.MatchingLabels{corev1.LabelHostname: hostname})
	return len(having(nodes, corev1.LabelHostname, hostname)) > 0, err
}
