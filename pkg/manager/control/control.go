// Package control has what the parts of the manager share: controllers, mutating webhooks for pods
// that never reject a pod, and the reservations of the cluster (docs/design.md, "Reservations").
package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/recorder"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// CallTimeout is the time limit of one call of the API server, and of one Reconcile.
const CallTimeout = 15 * time.Second

// A Queue is the queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Add adds a controller with one worker, which runs in every replica or only in the leader. watch
// enqueues what the controller reconciles, and may run until its context is done.
func Add(mgr manager.Manager, name string, r reconcile.Reconciler, leaderOnly bool,
	watch func(context.Context, Queue)) error {
	c, err := controller.New(name, mgr, controller.Options{Reconciler: r, NeedLeaderElection: &leaderOnly,
		ReconciliationTimeout: CallTimeout, MaxConcurrentReconciles: 1})
	if err != nil {
		return err
	}
	return c.Watch(source.Func(func(ctx context.Context, queue Queue) error {
		go watch(ctx, queue)
		return nil
	}))
}

// OnAllReplicas is a Runnable that runs in every replica, leader or not.
type OnAllReplicas func(context.Context) error

// Start implements manager.Runnable.
func (f OnAllReplicas) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection reports whether the Runnable runs only in the leader.
func (OnAllReplicas) NeedLeaderElection() bool { return false }

// IsLeader returns a function that reports whether this replica is the leader.
func IsLeader(mgr manager.Manager) func() bool {
	return func() bool {
		select {
		case <-mgr.Elected():
			return true
		default:
			return false
		}
	}
}

// ListWatch returns the list and watch calls of an informer for the objects of a kind that have a
// label, or for all if label is "".
func ListWatch[V any](mgr manager.Manager, i *kube.Informer[V], kind schema.GroupVersionKind, resource, label string,
) (*toolscache.ListWatch, error) {
	return listWatch(mgr, i, kind, resource, metav1.NamespaceAll, label, "")
}

// listWatch returns the list and watch calls for the objects of a namespace with a label and a
// field.
func listWatch[V any](mgr manager.Manager, i *kube.Informer[V], kind schema.GroupVersionKind, resource, namespace,
	label, field string) (*toolscache.ListWatch, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(kind, i.NewObject())
	metav1.AddToGroupVersion(scheme, kind.GroupVersion())
	client, err := kube.NewClient(mgr.GetConfig(), mgr.GetHTTPClient(), scheme, kind.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource, err)
	}
	return i.ListWatch(client, resource, namespace, label, field), nil
}

// Watch adds the watch of an informer, with the objects of ListWatch, to a manager that has not
// started. It runs in every replica.
func Watch[V any](mgr manager.Manager, i *kube.Informer[V], kind schema.GroupVersionKind, resource, label string,
) error {
	lw, err := ListWatch(mgr, i, kind, resource, label)
	if err != nil {
		return err
	}
	return mgr.Add(OnAllReplicas(func(ctx context.Context) error { return i.Run(ctx, lw, resource) }))
}

// WatchLimits adds the watch of the limits of namespaces to a manager that has not started.
func WatchLimits(mgr manager.Manager, limits *kube.Informer[policy.Limits]) error {
	lw, err := listWatch(mgr, limits, corev1.SchemeGroupVersion.WithKind("ConfigMap"), "configmaps",
		kube.LimitsName.Namespace, "", kube.LimitsField)
	if err != nil {
		return err
	}
	return mgr.Add(OnAllReplicas(func(ctx context.Context) error { return limits.Run(ctx, lw, "limits") }))
}

// Nodes are the nodes of the cluster. They have only the fields that decide whether a pod may run
// there.
type Nodes = kube.Informer[*corev1.Node]

// NewNodes returns Nodes, of which none is known yet.
func NewNodes() *Nodes { return kube.NewInformer(TrimNode, nil) }

// WatchNodes adds the watch of the nodes to a manager that has not started.
func WatchNodes(mgr manager.Manager) (*Nodes, error) {
	nodes := NewNodes()
	return nodes, Watch(mgr, nodes, corev1.SchemeGroupVersion.WithKind("Node"), "nodes", "")
}

// What is kept of the labels and taints of a node, at most. The API server limits neither. Nodes
// have tens of labels, some hundreds.
const (
	maxLabelBytes = 32 << 10 // with labelBytes for each
	labelBytes    = 64
	maxTaints     = 32
)

// TrimNode returns a node as Nodes have it.
func TrimNode(n *corev1.Node) *corev1.Node {
	trimmed := &corev1.Node{ObjectMeta: Identity(&n.ObjectMeta), Spec: corev1.NodeSpec{
		Taints: slices.Clone(n.Spec.Taints[:min(len(n.Spec.Taints), maxTaints)]), Unschedulable: n.Spec.Unschedulable}}
	trimmed.Labels = limitLabels(n.Labels)
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status,
				LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return trimmed
}

// limitLabels returns the labels of a node that are kept: those of Kubernetes first, which say the
// hostname and the zone.
func limitLabels(all map[string]string) map[string]string {
	kept, left := map[string]string{}, maxLabelBytes
	for _, areFirst := range []bool{true, false} {
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if strings.Contains(key, "kubernetes.io/") != areFirst {
				continue
			}
			if left -= labelBytes + len(key) + len(all[key]); left >= 0 {
				kept[Intern(key)] = all[key]
			}
		}
	}
	return kept
}

// RequestFor returns the request for a key "namespace/name", or "name".
func RequestFor(key string) reconcile.Request {
	namespace, name, _ := toolscache.SplitMetaNamespaceKey(key) // it fails only for other forms
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// MaxReportAge is the age up to which a pod gets an Event about its creation. Older pods get none,
// so that a new leader does not repeat the Events of the former leader.
const MaxReportAge = 30 * time.Second

// Warn writes a warning Event. It cuts the note to the length that the API server accepts: notes
// may have text that users write, and client-go keeps each Event for some minutes.
func Warn(events recorder.EventRecorder, regarding, related runtime.Object, reason, action, note string) {
	events.Eventf(regarding, related, corev1.EventTypeWarning, reason, action, "%s", kube.Cut(note, kube.MaxNote))
}

// Delete deletes an object if it still has the UID of o and that resource version. It reports false
// if the object has changed or is gone.
func Delete(ctx context.Context, c client.Client, o client.Object, version string) (deleted bool, err error) {
	err = c.Delete(ctx, o, client.Preconditions{UID: new(o.GetUID()), ResourceVersion: &version})
	return err == nil, IgnoreRace(err)
}

// NodeAffinity returns the node affinity of a pod, which may be changed. It adds an empty one if
// the pod has none.
func NodeAffinity(pod *corev1.Pod) *corev1.NodeAffinity {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	return pod.Spec.Affinity.NodeAffinity
}

// Identity returns the fields of an object's metadata that identify the object and its state, and
// its creation and deletion time.
func Identity(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: Intern(m.Namespace), Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		Generation: m.Generation, CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// Intern returns a string equal to s. Equal strings that Intern returns share their memory, which
// saves memory where thousands of objects have the same value.
func Intern(s string) string { return unique.Make(s).Value() }

// Pick returns the entries of a map with the given keys, nil if there are none.
func Pick(from map[string]string, keys ...string) map[string]string {
	var picked map[string]string
	for _, key := range keys {
		if value, ok := from[key]; ok {
			if picked == nil {
				picked = map[string]string{}
			}
			picked[key] = value
		}
	}
	return picked
}

// IgnoreRace returns nil for an error which only says that another replica or a controller has
// changed or deleted the object.
func IgnoreRace(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}
