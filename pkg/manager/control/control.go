// Package control adds controllers and pod webhooks to the manager, and watches nodes and
// reservations for them. The webhooks never reject a pod.
package control

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// CallTimeout is the time limit of one call of the API server, and of one Reconcile.
const CallTimeout = 15 * time.Second

// A Queue is the queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Add adds a controller with one worker, which runs in every replica or only in the leader. watch
// enqueues what the controller reconciles, and may run until its context is done.
func Add(mgr manager.Manager, name string, r reconcile.Reconciler, leaderOnly bool,
	watch func(context.Context, Queue)) error {
	c, err := controller.New(name, mgr, options(r, leaderOnly))
	if err != nil {
		return err
	}
	return c.Watch(source.Func(func(ctx context.Context, queue Queue) error {
		go watch(ctx, queue)
		return nil
	}))
}

// maxRetry is the longest time until what has failed is reconciled again. It is short, so that
// nothing waits for long after an outage of the API server, and not shorter, because an object that
// fails each time may have megabytes. There is no limit for all objects together: with one, an
// object would wait for those of other namespaces that fail.
const maxRetry = time.Minute

func options(r reconcile.Reconciler, leaderOnly bool) controller.Options {
	return controller.Options{Reconciler: r, NeedLeaderElection: &leaderOnly, ReconciliationTimeout: CallTimeout,
		MaxConcurrentReconciles: 1, RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			10*time.Millisecond, maxRetry)}
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

// Objects are the objects of a kind that an informer has: those of a namespace, with a label and a
// field. Each of these is any if it is "".
type Objects struct {
	Kind                              schema.GroupVersionKind
	Resource, Namespace, Label, Field string
}

// ListWatch returns the list and watch calls of an informer.
func ListWatch[V any](mgr manager.Manager, i *kube.Informer[V], o Objects) (*toolscache.ListWatch, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(o.Kind, i.NewObject())
	metav1.AddToGroupVersion(scheme, o.Kind.GroupVersion())
	client, err := kube.NewClient(mgr.GetConfig(), mgr.GetHTTPClient(), scheme, o.Kind.GroupVersion())
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", o.Resource, err)
	}
	return i.ListWatch(client, o.Resource, o.Namespace, o.Label, o.Field), nil
}

// Watch adds the watch of an informer to a manager that has not started. It runs in every replica.
// what is that of kube.Informer.Run.
func Watch[V any](mgr manager.Manager, i *kube.Informer[V], what string, o Objects) error {
	lw, err := ListWatch(mgr, i, o)
	if err != nil {
		return err
	}
	return mgr.Add(OnAllReplicas(func(ctx context.Context) error { return i.Run(ctx, lw, what) }))
}

// RequestFor returns the request for a key "namespace/name", or "name".
func RequestFor(key string) reconcile.Request {
	namespace, name, _ := toolscache.SplitMetaNamespaceKey(key) // it fails only for other forms
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}
