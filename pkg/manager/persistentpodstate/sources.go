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
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
)

// Indexes of PersistentPodStates. Lookups use them, so that their cost does not grow with the
// number of objects.
const (
	byTarget = "target"
	byNode   = "node"
)

// podName is the label that the pods of a StatefulSet have, both of the StatefulSets of Kubernetes
// and of those of Kruise.
const podName = "statefulset.kubernetes.io/pod-name"

// sources starts the informers of a clusterView.
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
type watched[V any] struct {
	*informer.Informer[V]
	resource string // resource.group, the name of the CRD
	stop     context.CancelFunc
	again    func() // lists all objects again, and calls the handlers for each
}

// start runs an informer of a resource until ctx is done or stop is called.
func start[V any](ctx context.Context, resource schema.GroupVersionResource, i *informer.Informer[V],
	lw *toolscache.ListWatch, h informer.Handler[V]) *watched[V] {
	ctx, stop := context.WithCancel(ctx)
	i.Handle(h)
	again := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			once, end := context.WithCancel(ctx)
			done := make(chan struct{})
			go func() { defer close(done); _ = i.Run(once, lw, resource.String()) }()
			select {
			case <-again:
				end()
				<-done
				i.CallAll()
			case <-done:
			}
			end()
		}
	}()
	return &watched[V]{i, resource.GroupResource().String(), stop, func() {
		select {
		case again <- struct{}{}:
		default:
		}
	}}
}

func listWatch[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error),
	watch toolscache.WatchFuncWithContext) *toolscache.ListWatch {
	return &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return list(ctx, o)
		},
		WatchFuncWithContext: watch,
	}
}

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// serves reports whether the CRD with the given name marks a version as served. The API server may
// begin to serve that version a moment later. serves returns false if the CRD does not exist.
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

// crds watches all CRDs. The informer keeps only their names.
func (s *sources) crds(ctx context.Context, h informer.Handler[string]) *watched[string] {
	c := s.metadata.Resource(crdResource)
	name := func(o *metav1.PartialObjectMetadata) string { return o.Name }
	return start(ctx, crdResource, informer.New(name, nil), listWatch(c.List, c.Watch), h)
}

func (s *sources) objects(ctx context.Context, resource schema.GroupVersionResource,
	h informer.Handler[*pps.PersistentPodState]) *watched[*pps.PersistentPodState] {
	c := s.dynamic.Resource(resource)
	return start(ctx, resource, informer.New(objectOf, indexes), listWatch(c.List, c.Watch), h)
}

// objectOf decodes a PersistentPodState. If the object does not fit the Go type, objectOf returns
// one without spec and status.
func objectOf(u *unstructured.Unstructured) *pps.PersistentPodState {
	var o pps.PersistentPodState
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &o); err != nil {
		// The CRD of another project accepted the object. Without a target, the object has no
		// effect.
		o = pps.PersistentPodState{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(),
			UID: u.GetUID()}}
	}
	o.ManagedFields = nil
	return &o
}

var indexes = informer.Indexes[*pps.PersistentPodState]{
	byTarget: func(o *pps.PersistentPodState) []string { return []string{targetOf(o).String()} },
	byNode: func(o *pps.PersistentPodState) []string {
		var nodes []string
		for _, s := range o.Status.PodStates {
			nodes = append(nodes, s.NodeName)
		}
		return nodes
	},
}

func (s *sources) workloads(ctx context.Context, resource schema.GroupVersionResource,
	h informer.Handler[*workload]) *watched[*workload] {
	c := s.dynamic.Resource(resource)
	return start(ctx, resource, informer.New(workloadOf, nil), listWatch(c.List, c.Watch), h)
}

// pods watches the pods of workloads of the given kinds. If kinds are only the built-in ones, it
// watches only pods with the label podName. With other kinds it watches all pods, because it is not
// known which labels their pods have. keeps is passed to podViewOf.
func (s *sources) pods(ctx context.Context, kinds kindList, keeps func(key string) bool,
	h informer.Handler[*podView]) *watched[*podView] {
	lw := toolscache.NewFilteredListWatchFromClient(s.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		func(o *metav1.ListOptions) {
			if len(kinds) == len(builtIn) {
				o.LabelSelector = podName
			}
		})
	view := func(p *corev1.Pod) *podView { return podViewOf(p, kinds, keeps) }
	return start(ctx, corev1.SchemeGroupVersion.WithResource("pods"), informer.New(view, nil), lw, h)
}
