package persistentpodstate

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/leasehold-cni/leasehold/pkg/kube/once"
)

// A generator is the controller that creates, updates and deletes the PersistentPodStates for which
// workloads ask by annotations. It runs in the leader.
type generator struct {
	view     *clusterView
	client   client.Client
	live     client.Reader // reads from the API server, not from a cache
	role     *role
	events   ctrlrecorder.EventRecorder
	reported once.Set
}

// Reconcile does what generate returns for one workload. It does nothing while Kruise serves
// PersistentPodStates, and tries again later while the informers have not synced.
func (g *generator) Reconcile(ctx context.Context, target targetKey) (reconcile.Result, error) {
	if wait := g.role.requeueAfter(); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if !g.view.HasSynced() {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	workload, err := g.view.Workload(target)
	if err != nil {
		return requeue(err)
	}
	var others []string
	for _, o := range g.view.Objects(target) {
		if o.Name != target.Name {
			others = append(others, o.Name)
		}
	}
	object := g.view.Object(types.NamespacedName{Namespace: target.Namespace, Name: target.Name})
	a := generate(target, workload, object, others)
	if a.Problem != "" && g.reported.First(string(workload.UID)+a.Problem, time.Now()) {
		g.events.Eventf(workloadRef(workload), nil, corev1.EventTypeWarning, reasonInvalid, "Generate", "%s", a.Problem)
	}
	return reconcile.Result{}, g.act(ctx, a)
}

// act carries out an action. Conflicts are not errors: the write that caused the conflict enqueues
// the workload again.
func (g *generator) act(ctx context.Context, a action) error {
	var err error
	switch {
	case a.Create != nil:
		if err = g.client.Create(ctx, a.Create); apierrors.IsAlreadyExists(err) {
			return nil // the informer has not seen it yet
		}
	case a.Update != nil:
		err = rewrite(ctx, g.live, g.client, a.Update)
	case a.Delete != nil:
		err = g.client.Delete(ctx, a.Delete, client.Preconditions{UID: &a.Delete.UID,
			ResourceVersion: &a.Delete.ResourceVersion})
	}
	return ignoreConflict(err)
}

func workloadRef(w *workload) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(w.APIVersion)
	u.SetKind(w.Kind.Kind)
	u.SetNamespace(w.Namespace)
	u.SetName(w.Name)
	u.SetUID(w.UID)
	return u
}

func (g *generator) setup(mgr manager.Manager) error {
	c, err := controller.NewTyped("persistentpodstate-generator", mgr,
		controller.TypedOptions[targetKey]{Reconciler: g})
	if err != nil {
		return err
	}
	return c.Watch(g.view.targets.source(g.view.allTargets))
}
