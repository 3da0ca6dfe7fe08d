package topology

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// The indexes of the informer of PersistentPodStates: no look-up lists them (FIELD, P17).
const (
	byTarget = "target"
	byNode   = "node"
)

// podName is the label of a StatefulSet's pods, built in or Kruise's.
const podName = "statefulset.kubernetes.io/pod-name"

// sources make informers that keep no more than is needed. What they keep is not to be written to.
type sources struct {
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	metadata metadata.Interface
}

func newSources(mgr manager.Manager) (*sources, error) {
	var s sources
	var err error
	if s.client, err = kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient()); err != nil {
		return nil, err
	}
	if s.dynamic, err = dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient()); err != nil {
		return nil, err
	}
	s.metadata, err = metadata.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	return &s, err
}

// watched is an informer that can be ended.
type watched struct {
	toolscache.SharedIndexInformer
	told     toolscache.ResourceEventHandlerRegistration
	resource string // as a CRD is named
	stop     context.CancelFunc
}

// HasSynced tells whether everything has been listed, and whoever wants to know has been told of it: that comes later.
func (w *watched) HasSynced() bool { return w.told.HasSynced() }

// events are what an informer tells of objects of one type. A nil function is for what nobody wants to know.
type events[T any] struct {
	came    func(T)
	changed func(before, now T)
	went    func(T)
}

func (e events[T]) OnAdd(object any, _ bool) {
	if o, ok := object.(T); ok && e.came != nil {
		e.came(o)
	}
}

func (e events[T]) OnUpdate(before, now any) {
	b, ok1 := before.(T)
	n, ok2 := now.(T)
	if ok1 && ok2 && e.changed != nil {
		e.changed(b, n)
	}
}

func (e events[T]) OnDelete(object any) {
	if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = gone.Obj
	}
	if o, ok := object.(T); ok && e.went != nil {
		e.went(o)
	}
}

// run starts an informer of a resource.
func run(ctx context.Context, resource schema.GroupVersionResource, lw *toolscache.ListWatch, example runtime.Object,
	transform toolscache.TransformFunc, indexers toolscache.Indexers, tell toolscache.ResourceEventHandler) (*watched, error) {
	informer := toolscache.NewSharedIndexInformerWithOptions(lw, example, toolscache.SharedIndexInformerOptions{
		Indexers: indexers, ObjectDescription: resource.String()})
	if err := informer.SetTransform(transform); err != nil {
		return nil, err
	}
	told, err := informer.AddEventHandler(tell)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	go informer.RunWithContext(ctx)
	return &watched{informer, told, resource.GroupResource().String(), stop}, nil
}

// crds watches the names of all CRDs.
func (s *sources) crds(ctx context.Context, tell events[*metav1.PartialObjectMetadata]) (*watched, error) {
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	c := s.metadata.Resource(resource)
	return run(ctx, resource, &toolscache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		WatchFuncWithContext: c.Watch,
	}, &metav1.PartialObjectMetadata{}, func(object any) (any, error) {
		if o, ok := object.(*metav1.PartialObjectMetadata); ok {
			o.ObjectMeta = metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
		}
		return object, nil
	}, nil, tell)
}

// unstructuredOf watches objects of any kind.
func (s *sources) unstructuredOf(ctx context.Context, resource schema.GroupVersionResource, transform toolscache.TransformFunc,
	indexers toolscache.Indexers, tell toolscache.ResourceEventHandler) (*watched, error) {
	c := s.dynamic.Resource(resource)
	return run(ctx, resource, &toolscache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		WatchFuncWithContext: c.Watch,
	}, &unstructured.Unstructured{}, transform, indexers, tell)
}

func (s *sources) objects(ctx context.Context, resource schema.GroupVersionResource, tell events[*pps.PersistentPodState]) (*watched, error) {
	return s.unstructuredOf(ctx, resource, func(object any) (any, error) {
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			return object, nil
		}
		var o pps.PersistentPodState
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
			// Somebody else's CRD let it pass. It has no target, and stands in nobody's way.
			o = pps.PersistentPodState{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID()}}
		}
		o.ManagedFields = nil
		return &o, nil
	}, indexers, tell)
}

// indexers find PersistentPodStates.
var indexers = toolscache.Indexers{
	byTarget: func(object any) ([]string, error) {
		return []string{targetOf(object.(*pps.PersistentPodState)).String()}, nil
	},
	byNode: func(object any) ([]string, error) {
		var nodes []string
		for _, s := range object.(*pps.PersistentPodState).Status.PodStates {
			nodes = append(nodes, s.NodeName)
		}
		return nodes, nil
	},
}

// workloadView lets an informer keep workloads.
type workloadView struct {
	metav1.ObjectMeta // namespace, name, UID
	workload          *Workload
}

func (s *sources) workloads(ctx context.Context, resource schema.GroupVersionResource, tell events[*workloadView]) (*watched, error) {
	return s.unstructuredOf(ctx, resource, func(object any) (any, error) {
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			return object, nil
		}
		return &workloadView{
			metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()},
			workloadOf(u)}, nil
	}, toolscache.Indexers{}, tell)
}

// pods watches the pods of StatefulSets; of other kinds it is not known what their pods have in common.
func (s *sources) pods(ctx context.Context, kinds Kinds, tell events[*glance]) (*watched, error) {
	narrow := func(o *metav1.ListOptions) {
		if len(kinds) == len(builtIn) {
			o.LabelSelector = podName
		}
	}
	return run(ctx, corev1.SchemeGroupVersion.WithResource("pods"),
		toolscache.NewFilteredListWatchFromClient(s.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, narrow),
		&corev1.Pod{}, func(object any) (any, error) {
			if p, ok := object.(*corev1.Pod); ok {
				return glanceAt(p, kinds), nil
			}
			return object, nil
		}, nil, tell)
}
