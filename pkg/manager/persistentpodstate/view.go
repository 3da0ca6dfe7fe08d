package persistentpodstate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

var errNotSynced = errors.New("the informers have not synced yet")

// byTarget is the index of PersistentPodStates and pods by their target. Lookups use it, so that
// their cost does not grow with the number of objects.
const byTarget = "target"

// podName is the label that the pods of a StatefulSet have, both of the StatefulSets of Kubernetes
// and of those of Kruise.
const podName = "statefulset.kubernetes.io/pod-name"

// clusterView is what this replica observes of the cluster: PersistentPodStates, nodes, workloads
// of the kinds that the API server serves, and pods as soon as there is a PersistentPodState.
type clusterView struct {
	*Feature
	startedAt time.Time
	nodes     *control.Nodes
	// left are the nodes, by name, that were removed from the cluster less than Feature.goneGrace
	// ago. They count as present, because they may be registered again: a cloud provider stops and
	// starts a machine, or a user deletes the Node object and the kubelet creates it again. Then
	// nodes has them as well, as they are now.
	left      *utilcache.LRUExpireCache
	objects   *kube.Informer[*stored]
	workloads map[schema.GroupKind]*kube.Informer[*workload]
	pods      *kube.Informer[*workloadPod]
	ended     *utilcache.LRUExpireCache // the last *workloadPod that ran and ended, by podKey
}

// maxLeft is the largest number of nodes that count as present although they were removed.
const maxLeft = 10_000

// newView returns a view without an API server.
func newView(p *Feature, nodes *control.Nodes) *clusterView {
	v := &clusterView{Feature: p, startedAt: time.Now(), nodes: nodes, left: utilcache.NewLRUExpireCache(maxLeft),
		ended:     utilcache.NewLRUExpireCache(maxRemembered),
		workloads: map[schema.GroupKind]*kube.Informer[*workload]{}}
	nodes.Handle(kube.Handler[*corev1.Node]{Deleted: func(n *corev1.Node) { v.left.Add(n.Name, n, v.goneGrace) }})
	v.objects = kube.NewInformer(storedOf, kube.Indexes[*stored]{
		byTarget: func(s *stored) []string { return []string{targetOf(&s.object).String()} }})
	for _, kind := range p.kinds {
		view := func(o *workloadObject) *workload { return workloadOf(o, kind) }
		v.workloads[kind.GroupKind()] = kube.NewInformer(view, nil)
	}
	v.pods = kube.NewInformer(func(p *corev1.Pod) *workloadPod { return workloadPodOf(p, v.kinds, v.recordedKeys) },
		kube.Indexes[*workloadPod]{byTarget: func(p *workloadPod) []string {
			if p == nil {
				return nil // no workload of the kinds controls it
			}
			return []string{p.target.String()}
		}})
	v.pods.Handle(kube.Handler[*workloadPod]{Updated: v.podChanged,
		Deleted: func(last *workloadPod) { v.podChanged(last, nil) }})
	return v
}

// setup adds the watches to a manager that has not started.
func (v *clusterView) setup(mgr manager.Manager) error {
	label := podName
	if len(v.kinds) > len(kube.StatefulSets) {
		label = "" // it is not known which labels their pods have
	}
	pods, err := control.ListWatch(mgr, v.pods, control.Objects{Kind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Resource: "pods", Label: label})
	run := func(ctx context.Context) error {
		needed, need := context.WithCancel(ctx)
		v.objects.Handle(kube.Handler[*stored]{Added: func(*stored) { need() }})
		go runServed(ctx, mgr, v.objects, objectKind, "PersistentPodStates")
		for _, kind := range v.kinds {
			go runServed(ctx, mgr, v.workloads[kind.GroupKind()], kind, kind.GroupKind().String())
		}
		if <-needed.Done(); ctx.Err() != nil {
			return nil
		}
		return v.pods.Run(ctx, pods, "pods of PersistentPodStates")
	}
	return errors.Join(err, mgr.AddReadyzCheck("persistentpodstate", v.Ready), mgr.Add(control.OnAllReplicas(run)))
}

// runServed runs an informer as soon as the API server serves its kind. what is that of
// kube.Informer.Run.
func runServed[V any](ctx context.Context, mgr manager.Manager, i *kube.Informer[V], kind schema.GroupVersionKind,
	what string) {
	_ = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		mapping, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return false, nil
		}
		// It does not fail, because the configuration is valid.
		lw, _ := control.ListWatch(mgr, i, control.Objects{Kind: kind, Resource: mapping.Resource.Resource})
		if _, err := lw.ListWithContextFunc(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsNotFound(err) {
			return false, nil
		}
		return true, i.Run(ctx, lw, what)
	})
}

var objectKind = pps.GroupVersion.WithKind("PersistentPodState")

// follow enqueues the PersistentPodStates, and the names of the workloads, that have to be
// reconciled.
func (v *clusterView) follow(_ context.Context, queue control.Queue) {
	enqueue := func(namespace, name string) { queue.Add(control.RequestFor(namespace + "/" + name)) }
	target := func(t targetKey) {
		enqueue(t.Namespace, t.Name)
		for _, s := range v.objects.ByIndex(byTarget, t.String()) {
			enqueue(s.object.Namespace, s.object.Name)
		}
	}
	pod := func(p *workloadPod) {
		if p != nil {
			target(p.target)
		}
	}
	v.objects.Handle(kube.Each(func(s *stored) {
		enqueue(s.object.Namespace, s.object.Name)
		target(targetOf(&s.object)) // one with the same target may take effect now
	}))
	v.pods.Handle(kube.Handler[*workloadPod]{Added: pod, Deleted: pod,
		Updated: func(before, now *workloadPod) { pod(before); pod(now) }})
	for _, w := range v.workloads {
		w.Handle(kube.Each(func(w *workload) { target(w.targetKey) }))
	}
	node := func(n *corev1.Node) {
		for _, s := range v.objects.List() {
			if s.hasNode(n.Name) {
				enqueue(s.object.Namespace, s.object.Name)
			}
		}
	}
	v.nodes.Handle(kube.Handler[*corev1.Node]{Added: node, Updated: func(before, now *corev1.Node) {
		if !maps.Equal(before.Labels, now.Labels) { // most updates do not change them
			node(now)
		}
	}})
}

// recordedKeys returns the keys of the annotations that are recorded of the pods of a workload.
func (v *clusterView) recordedKeys(t targetKey) (keys []string) {
	for _, s := range v.objects.ByIndex(byTarget, t.String()) {
		keys = append(keys, annotationsOf(&s.object.Spec)...)
	}
	return keys
}

// podChanged remembers a pod that was deleted (now is nil), or that has another controller now.
// Both are nil for a pod of another kind of workload.
func (v *clusterView) podChanged(before, now *workloadPod) {
	if before != nil && (now == nil || now.target != before.target) {
		v.podEnded(before)
	}
}

// Ready is a readiness check. It returns an error until PersistentPodStates and nodes have been
// listed, for at most one minute, because the replica has to serve the other webhooks too.
func (v *clusterView) Ready(*http.Request) error {
	if !v.HasSynced() && time.Since(v.startedAt) <= time.Minute {
		return errNotSynced
	}
	return nil
}

// HasSynced reports whether the informers of PersistentPodStates and nodes have synced.
func (v *clusterView) HasSynced() bool { return v.objects.HasSynced() && v.nodes.HasSynced() }

// Objects returns the PersistentPodStates whose target is t, sorted by creation time, then by name.
// The reconciler uses only the first, and ignores the others.
func (v *clusterView) Objects(t targetKey) []*stored {
	objects := v.objects.ByIndex(byTarget, t.String())
	slices.SortFunc(objects, func(a, b *stored) int {
		return cmp.Or(a.object.CreationTimestamp.Compare(b.object.CreationTimestamp.Time),
			cmp.Compare(a.object.Name, b.object.Name))
	})
	return objects
}

// Workload returns the workload with the given key, nil if it does not exist. known is false if it
// is not known whether the workload exists, because its kind is not served or was not listed yet.
func (v *clusterView) Workload(t targetKey) (w *workload, known bool) {
	all := v.workloads[t.Kind]
	if all == nil || !all.HasSynced() {
		return nil, false
	}
	w, _ = all.Get(t.Namespace + "/" + t.Name)
	return w, true
}

// node returns a node that counts as present, nil if there is none with that name. The caller must
// not modify the node.
func (v *clusterView) node(name string) *corev1.Node {
	if n, found := v.nodes.Get(name); found {
		return n
	}
	left, _ := v.left.Get(name)
	n, _ := left.(*corev1.Node)
	return n
}

// present returns the nodes that count as present, some of them twice. The caller must not modify
// them.
func (v *clusterView) present() []*corev1.Node {
	nodes := v.nodes.List()
	for _, name := range v.left.Keys() {
		if n := v.node(name.(string)); n != nil {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// awayFrom returns since when a node is gone or not ready, and how long after that a pod with a
// patience waits for it. The time is zero if the pod waits without an end. n is nil for a node that
// is gone; it may have been so before this replica started.
func (v *clusterView) awayFrom(n *corev1.Node, patience lease.Window) (since time.Time, wait time.Duration) {
	if n == nil {
		return v.startedAt, v.goneGrace
	}
	if c := control.Ready(n); c.Status != corev1.ConditionTrue && patience != lease.Forever {
		since = c.LastTransitionTime.Time
	}
	return since, time.Duration(patience)
}

// isLost returns why a new pod does not wait for a node, "" if it may wait: the node is gone, or
// has not been ready for longer than the pod's patience.
func (v *clusterView) isLost(node string, pod *corev1.Pod) string {
	n := v.node(node)
	patience, _ := patienceOf(pod.Annotations)
	switch since, wait := v.awayFrom(n, patience); {
	case since.IsZero() || time.Since(since) < wait:
		return ""
	case n == nil:
		return fmt.Sprintf("node %s is gone", node)
	}
	return fmt.Sprintf("node %s has not been ready for longer than %s=%s", node, annotationPatience,
		pod.Annotations[annotationPatience])
}
