package topology

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	admission "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/leasehold-cni/leasehold/pkg/kube/meta"
)

// Kruise is present where both are (NAMES, Kruise present).
const (
	kruiseConfiguration = "kruise-mutating-webhook-configuration"
	kruiseNamespace     = "kruise-system"
	kruiseManager       = "kruise-controller-manager"
)

// role owns the webhook configurations: they go when leasehold is removed from the cluster, and whoever removes it need not
// know of them.
const role = "leasehold-manager-topology"

// lookEvery is how often the keeper looks when nothing rings.
const lookEvery = 10 * time.Second

// stance is what the leader has found out about whose job this is.
type stance struct {
	state atomic.Int32
	ours  atomic.Bool // the CRD is the built-in one, which keeps both spellings
}

const (
	undecided int32 = iota
	serving
	aside // Kruise is here
)

// wait is when to ask again whether to do anything; 0 if now.
func (s *stance) wait() time.Duration {
	switch s.state.Load() {
	case serving:
		return 0
	case aside:
		return lookEvery
	}
	return time.Second
}

// A keeper has the CRD and the webhook configurations be as they should. The leader does.
type keeper struct {
	view      *View
	kinds     Kinds
	namespace string
	client    client.Client // reads the Secret from the manager's cache
	live      client.Reader
	stance    *stance
	events    ctrlrecorder.EventRecorder
	log       logr.Logger
}

// Reconcile looks at the whole.
func (k *keeper) Reconcile(ctx context.Context, _ struct{}) (reconcile.Result, error) {
	kruise, err := k.kruise(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if kruise {
		return reconcile.Result{RequeueAfter: lookEvery}, k.standAside(ctx)
	}
	s, err := k.service(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if s.ca == nil {
		return reconcile.Result{RequeueAfter: time.Second}, nil // the certificate is being made
	}
	// The webhooks come first: nothing gets in that they have not seen.
	if err := k.ensureWebhooks(ctx, s); err != nil {
		return reconcile.Result{}, fmt.Errorf("the webhooks of PersistentPodState: %w", err)
	}
	if err := k.ensureCRD(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if k.stance.state.Swap(serving) == aside {
		k.log.Info("Kruise is gone: PersistentPodStates are served here from now on")
	}
	return reconcile.Result{RequeueAfter: lookEvery}, nil
}

// kruise tells whether Kruise is there and works.
func (k *keeper) kruise(ctx context.Context) (bool, error) {
	err := k.live.Get(ctx, types.NamespacedName{Name: kruiseConfiguration}, &admission.MutatingWebhookConfiguration{})
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	var d appsv1.Deployment
	err = k.live.Get(ctx, types.NamespacedName{Namespace: kruiseNamespace, Name: kruiseManager}, &d)
	return err == nil && d.Status.ReadyReplicas > 0, client.IgnoreNotFound(err)
}

// standAside leaves this API to Kruise, and says so once.
func (k *keeper) standAside(ctx context.Context) error {
	for _, o := range []client.Object{&admission.MutatingWebhookConfiguration{}, &admission.ValidatingWebhookConfiguration{}} {
		o.SetName(ConfigurationName)
		if err := client.IgnoreNotFound(k.client.Delete(ctx, o)); err != nil {
			return fmt.Errorf("removing the webhooks of PersistentPodState: %w", err)
		}
	}
	if k.stance.state.Swap(aside) != aside {
		const text = "Kruise is here and serves PersistentPodStates; leasehold leaves them to it, and goes on pinning pods to their addresses"
		k.log.Info(text)
		var crd metav1.PartialObjectMetadata
		crd.SetGroupVersionKind(crdKind)
		if err := k.live.Get(ctx, types.NamespacedName{Name: crdName}, &crd); err == nil {
			k.events.Eventf(&crd, nil, corev1.EventTypeNormal, "KruisePresent", "StandAside", text)
		}
	}
	return nil
}

// service gathers what the webhook configurations need.
func (k *keeper) service(ctx context.Context) (service, error) {
	s := service{namespace: k.namespace}
	var secret corev1.Secret
	err := k.client.Get(ctx, types.NamespacedName{Namespace: k.namespace, Name: meta.ManagerName}, &secret)
	if client.IgnoreNotFound(err) != nil {
		return s, fmt.Errorf("reading the CA: %w", err)
	}
	s.ca = secret.Data["ca.crt"]
	var owner rbacv1.ClusterRole
	if err := k.live.Get(ctx, types.NamespacedName{Name: role}, &owner); client.IgnoreNotFound(err) != nil {
		return s, err
	} else if err == nil {
		s.owner = []metav1.OwnerReference{{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole", Name: role, UID: owner.UID}}
	}
	return s, nil
}

// ensureWebhooks has both configurations be as they should. The validating one comes first: nothing gets in unchecked.
func (k *keeper) ensureWebhooks(ctx context.Context, s service) error {
	var v admission.ValidatingWebhookConfiguration
	err := k.ensure(ctx, &v, func() (client.Object, bool) {
		want := s.validating()
		return want, equality.Semantic.DeepEqual(v.Webhooks, want.Webhooks)
	})
	if err != nil {
		return err
	}
	var m admission.MutatingWebhookConfiguration
	return k.ensure(ctx, &m, func() (client.Object, bool) {
		// While it is not known whether there is a PersistentPodState, what is there stays.
		want := s.mutating(k.kinds, k.view.Count() > 0 || !k.view.Known() && len(m.Webhooks) > 1)
		return want, equality.Semantic.DeepEqual(m.Webhooks, want.Webhooks)
	})
}

// ensure reads a webhook configuration and writes it if it is not as wanted, or not owned as wanted.
func (k *keeper) ensure(ctx context.Context, have client.Object, wanted func() (want client.Object, same bool)) error {
	err := k.live.Get(ctx, types.NamespacedName{Name: ConfigurationName}, have)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	want, same := wanted()
	switch {
	case apierrors.IsNotFound(err):
		return k.client.Create(ctx, want)
	case same && equality.Semantic.DeepEqual(have.GetOwnerReferences(), want.GetOwnerReferences()):
		return nil
	}
	want.SetResourceVersion(have.GetResourceVersion())
	return k.client.Update(ctx, want)
}

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// ensureCRD makes the CRD where there is none, and renews its own.
func (k *keeper) ensureCRD(ctx context.Context) error {
	want, err := CRD()
	if err != nil {
		return err
	}
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(crdKind)
	err = k.live.Get(ctx, types.NamespacedName{Name: crdName}, have)
	switch {
	case apierrors.IsNotFound(err):
		k.log.Info("making the CRD of PersistentPodState: there is none")
		return k.client.Create(ctx, want)
	case err != nil:
		return err
	}
	ours := have.GetLabels()[managedBy] == us
	k.stance.ours.Store(ours)
	if !ours || have.GetDeletionTimestamp() != nil || have.GetAnnotations()[crdVersion] == want.GetAnnotations()[crdVersion] {
		return nil
	}
	versions, _, err := unstructured.NestedSlice(want.Object, "spec", "versions")
	if err == nil {
		err = unstructured.SetNestedSlice(have.Object, versions, "spec", "versions")
	}
	if err != nil {
		return err
	}
	have.SetAnnotations(want.GetAnnotations())
	return k.client.Update(ctx, have)
}

func (k *keeper) setup(mgr manager.Manager) error {
	c, err := controller.NewTyped("persistentpodstate-keeper", mgr, controller.TypedOptions[struct{}]{Reconciler: k})
	if err != nil {
		return err
	}
	return c.Watch(k.view.house.source(func() []struct{} { return []struct{}{{}} }))
}
