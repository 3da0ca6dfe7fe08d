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
	"k8s.io/client-go/tools/pager"
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
}

// start runs an informer of a resource until ctx is done or stop is called.
func start[V any](ctx context.Context, resource schema.GroupVersionResource, i *informer.Informer[V],
	lw *toolscache.ListWatch, h informer.Handler[V]) *watched[V] {
	ctx, stop := context.WithCancel(ctx)
	i.Handle(h)
	go func() { _ = i.Run(ctx, lw, resource.String()) }()
	return &watched[V]{i, resource.GroupResource().String(), stop}
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

// objectOf decodes a PersistentPodState, without the metadata of others. If the object does not fit
// the Go type, or its spec is too large, objectOf returns one without spec and status, which has no
// effect (isUnfit): the CRD of another project accepted it, or no webhook validated it.
func objectOf(u *unstructured.Unstructured) *pps.PersistentPodState {
	var decoded pps.PersistentPodState
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &decoded)
	o := &pps.PersistentPodState{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(),
		UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(), Generation: u.GetGeneration(),
		CreationTimestamp: u.GetCreationTimestamp(), DeletionTimestamp: u.GetDeletionTimestamp()}}
	if u.GetLabels()[labelGenerated] == generatedValue {
		o.Labels = map[string]string{labelGenerated: generatedValue}
	}
	if _, ref := ownerTarget(u); ref != nil {
		o.OwnerReferences = []metav1.OwnerReference{*ref}
	}
	if err != nil || validateSize(&decoded.Spec) != nil {
		return o
	}
	o.Spec, o.Status = decoded.Spec, decoded.Status
	o.Status.TargetUID = informer.Short(o.Status.TargetUID, informer.MaxUID)
	for name, state := range o.Status.PodStates {
		if bytesIn(state.Annotations) > maxRecorded {
			state.Annotations = nil
			o.Status.PodStates[name] = state
		}
	}
	return o
}

// isUnfit reports whether objectOf could not decode an object.
func isUnfit(o *pps.PersistentPodState) bool { return o.Spec.TargetRef.Name == "" }

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

// selectPods restricts a list to the pods with the label podName, if kinds are only the built-in
// ones. With other kinds it selects all pods, because it is not known which labels their pods have.
func selectPods(kinds kindList, o *metav1.ListOptions) {
	if len(kinds) == len(builtIn) {
		o.LabelSelector = podName
	}
}

// podsPage is how many pods eachPod reads at a time. A pod has at most 1.5 MiB.
const podsPage = 20

// eachPod calls do for each pod of a namespace that pods watches, as it is in etcd.
func (s *sources) eachPod(ctx context.Context, kinds kindList, namespace string, do func(*corev1.Pod) error) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return s.client.CoreV1().Pods(namespace).List(ctx, o)
	})
	pages.PageSize, pages.PageBufferSize = podsPage, 0
	var options metav1.ListOptions
	selectPods(kinds, &options)
	return pages.EachListItem(ctx, options, func(o runtime.Object) error { return do(o.(*corev1.Pod)) })
}

// pods watches the pods of workloads of the given kinds. keys is passed to podViewOf.
func (s *sources) pods(ctx context.Context, kinds kindList, keys func(targetKey) []string,
	h informer.Handler[*podView]) *watched[*podView] {
	lw := toolscache.NewFilteredListWatchFromClient(s.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
		func(o *metav1.ListOptions) { selectPods(kinds, o) })
	view := func(p *corev1.Pod) *podView { return podViewOf(p, kinds, keys) }
	return start(ctx, corev1.SchemeGroupVersion.WithResource("pods"), informer.New(view, nil), lw, h)
}
