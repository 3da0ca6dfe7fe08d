package persistentpodstate

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

// Indexes of the informer of PersistentPodStates. Lookups use them, so that their cost does not
// grow with the number of objects.
const (
	byTarget = "target"
	byNode   = "node"
)

// podName is the label of the pods of a StatefulSet, of Kubernetes or Kruise.
const podName = "statefulset.kubernetes.io/pod-name"

// sources start informers whose transforms keep only the fields that are needed. Their objects must
// not be modified.
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

// watched is an informer that can be stopped.
type watched struct {
	toolscache.SharedIndexInformer
	handler  toolscache.ResourceEventHandlerRegistration
	resource string // resource.group, the name of the CRD
	stop     context.CancelFunc
}

// HasSynced reports whether the list is complete and the event handler has been called for all of
// it, which is later than the informer's own HasSynced.
func (w *watched) HasSynced() bool { return w.handler.HasSynced() }

// handler is an event handler for objects of one type. Its functions may be nil.
type handler[T any] struct {
	added   func(T)
	updated func(before, now T)
	deleted func(T)
}

func (e handler[T]) OnAdd(object any, _ bool) {
	if o, ok := object.(T); ok && e.added != nil {
		e.added(o)
	}
}

func (e handler[T]) OnUpdate(before, now any) {
	b, ok1 := before.(T)
	n, ok2 := now.(T)
	if ok1 && ok2 && e.updated != nil {
		e.updated(b, n)
	}
}

func (e handler[T]) OnDelete(object any) {
	if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	if o, ok := object.(T); ok && e.deleted != nil {
		e.deleted(o)
	}
}

// run starts an informer of a resource.
func run(ctx context.Context, resource schema.GroupVersionResource, lw *toolscache.ListWatch, example runtime.Object,
	transform toolscache.TransformFunc, indexers toolscache.Indexers,
	eventHandler toolscache.ResourceEventHandler) (*watched, error) {
	informer := toolscache.NewSharedIndexInformerWithOptions(lw, example, toolscache.SharedIndexInformerOptions{
		Indexers: indexers, ObjectDescription: resource.String()})
	if err := informer.SetTransform(transform); err != nil {
		return nil, err
	}
	registration, err := informer.AddEventHandler(eventHandler)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	go informer.RunWithContext(ctx)
	return &watched{informer, registration, resource.GroupResource().String(), stop}, nil
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// serves reports whether the CRD of that name has a version that is served, be it now or in a moment.
func (s *sources) serves(ctx context.Context, crd, version string) (bool, error) {
	list, err := s.dynamic.Resource(crdResource).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + crd})
	if err != nil {
		return false, err
	}
	for _, item := range list.Items {
		versions, _, _ := unstructured.NestedSlice(item.Object, "spec", "versions")
		for _, v := range versions {
			if v, ok := v.(map[string]any); ok && v["name"] == version && v["served"] == true {
				return true, nil
			}
		}
	}
	return false, nil
}

// crds watches the names of all CRDs.
func (s *sources) crds(ctx context.Context, eventHandler handler[*metav1.PartialObjectMetadata]) (*watched, error) {
	c := s.metadata.Resource(crdResource)
	return run(ctx, crdResource, &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object,
			error) {
			return c.List(ctx, o)
		},
		WatchFuncWithContext: c.Watch,
	}, &metav1.PartialObjectMetadata{}, func(object any) (any, error) {
		if o, ok := object.(*metav1.PartialObjectMetadata); ok {
			o.ObjectMeta = metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}
		}
		return object, nil
	}, nil, eventHandler)
}

// unstructuredOf watches objects of any kind.
func (s *sources) unstructuredOf(ctx context.Context, resource schema.GroupVersionResource,
	transform toolscache.TransformFunc,
	indexers toolscache.Indexers, eventHandler toolscache.ResourceEventHandler) (*watched, error) {
	c := s.dynamic.Resource(resource)
	return run(ctx, resource, &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object,
			error) {
			return c.List(ctx, o)
		},
		WatchFuncWithContext: c.Watch,
	}, &unstructured.Unstructured{}, transform, indexers, eventHandler)
}

func (s *sources) objects(ctx context.Context, resource schema.GroupVersionResource,
	eventHandler handler[*pps.PersistentPodState]) (*watched, error) {
	return s.unstructuredOf(ctx, resource, func(object any) (any, error) {
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			return object, nil
		}
		var o pps.PersistentPodState
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
			// A CRD of another project accepted it. Without a target it has no effect.
			o = pps.PersistentPodState{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(),
				UID: u.GetUID()}}
		}
		o.ManagedFields = nil
		return &o, nil
	}, indexers, eventHandler)
}

// indexers are the index functions for PersistentPodStates.
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

// workloadView is the object that the informer of a workload kind keeps.
type workloadView struct {
	metav1.ObjectMeta // namespace, name, UID
	workload          *Workload
}

func (s *sources) workloads(ctx context.Context, resource schema.GroupVersionResource,
	eventHandler handler[*workloadView]) (*watched, error) {
	return s.unstructuredOf(ctx, resource, func(object any) (any, error) {
		u, ok := object.(*unstructured.Unstructured)
		if !ok {
			return object, nil
		}
		return &workloadView{
			metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(),
				ResourceVersion: u.GetResourceVersion()},
			workloadOf(u)}, nil
	}, toolscache.Indexers{}, eventHandler)
}

// pods watches the pods of StatefulSets only, by their label, unless other kinds are configured,
// whose labels are not known.
func (s *sources) pods(ctx context.Context, kinds Kinds, eventHandler handler[*podView]) (*watched, error) {
	selectPods := func(o *metav1.ListOptions) {
		if len(kinds) == len(builtIn) {
			o.LabelSelector = podName
		}
	}
	return run(ctx, corev1.SchemeGroupVersion.WithResource("pods"),
		toolscache.NewFilteredListWatchFromClient(s.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, selectPods),
		&corev1.Pod{}, func(object any) (any, error) {
			if p, ok := object.(*corev1.Pod); ok {
				return podViewOf(p, kinds), nil
			}
			return object, nil
		}, nil, eventHandler)
}
