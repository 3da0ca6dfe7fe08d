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
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
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

// patience is how long Kruise's manager may be away before this is done here: a drain or an upgrade is no end.
const patience = 3 * time.Minute

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
	aside // somebody else's
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

	kruise  kruise
	why     string // we stand aside
	missing once
}

// Reconcile looks at the whole.
func (k *keeper) Reconcile(ctx context.Context, _ struct{}) (reconcile.Result, error) {
	configured, ready, err := k.lookForKruise(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch k.kruise.decide(k.stance.state.Load(), configured, ready, time.Now()) {
	case aside:
		return reconcile.Result{RequeueAfter: lookEvery}, k.standAside(ctx, "KruisePresent", "Kruise is here and serves PersistentPodStates; "+
			"leasehold leaves them to it, and goes on pinning pods to their addresses")
	case undecided:
		return reconcile.Result{RequeueAfter: lookEvery}, nil
	}
	crd, err := k.readCRD(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if why := unfit(crd); why != "" {
		return reconcile.Result{RequeueAfter: lookEvery}, k.standAside(ctx, "CRDUnfit", "leasehold does not serve PersistentPodStates: "+why)
	}
	s, err := k.service(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if s.ca == nil {
		return reconcile.Result{RequeueAfter: time.Second}, nil // the certificate is being made
	}
	// The webhooks come first: nothing gets in that they have not seen.
	err = k.writeWebhooks(ctx, s.validating(), func(now []admission.MutatingWebhook) []admission.MutatingWebhook {
		// While it is not known whether there is a PersistentPodState, what is there stays.
		return s.mutating(k.kinds, k.view.Count() > 0 || !k.view.Known() && len(now) > 1)
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := k.ensureCRD(ctx, crd); err != nil {
		return reconcile.Result{}, err
	}
	if k.stance.state.Swap(serving) == aside {
		k.log.Info("PersistentPodStates are served here from now on")
	}
	k.why = ""
	return reconcile.Result{RequeueAfter: lookEvery}, nil
}

// kruise is what is known of Kruise's manager.
type kruise struct {
	away time.Time // since when it is configured and not ready; zero while it is ready, or nobody expects it
}

// decide tells whose job this is. Where Kruise is configured and not ready it may be on its way in or out: whoever has
// the job keeps it, for a while.
func (k *kruise) decide(stance int32, configured, ready bool, now time.Time) int32 {
	switch {
	case !configured:
		k.away = time.Time{}
		return serving
	case ready:
		k.away = time.Time{}
		return aside
	}
	if k.away.IsZero() {
		k.away = now
	}
	if now.Sub(k.away) >= patience {
		return serving
	}
	return stance
}

// lookForKruise looks whether Kruise is in the cluster, and whether its manager works.
func (k *keeper) lookForKruise(ctx context.Context) (configured, ready bool, err error) {
	err = k.live.Get(ctx, types.NamespacedName{Name: kruiseConfiguration}, &admission.MutatingWebhookConfiguration{})
	if err != nil {
		return false, false, client.IgnoreNotFound(err)
	}
	var d appsv1.Deployment
	err = k.live.Get(ctx, types.NamespacedName{Namespace: kruiseNamespace, Name: kruiseManager}, &d)
	return true, err == nil && d.Status.ReadyReplicas > 0, client.IgnoreNotFound(err)
}

// standAside does not serve this API, and says so once.
func (k *keeper) standAside(ctx context.Context, reason, why string) error {
	k.stance.state.Store(aside)
	err := k.writeWebhooks(ctx, nil, func([]admission.MutatingWebhook) []admission.MutatingWebhook { return nil })
	if err != nil || k.why == why {
		return err
	}
	k.why = why
	k.log.Info(why)
	var crd metav1.PartialObjectMetadata
	crd.SetGroupVersionKind(crdKind)
	if err := k.live.Get(ctx, types.NamespacedName{Name: crdName}, &crd); err == nil {
		k.events.Eventf(&crd, nil, corev1.EventTypeNormal, reason, "StandAside", "%s", why)
	}
	return nil
}

// service gathers what the webhook configurations need.
func (k *keeper) service(ctx context.Context) (service, error) {
	var secret corev1.Secret
	err := k.client.Get(ctx, types.NamespacedName{Namespace: k.namespace, Name: meta.ManagerName}, &secret)
	if client.IgnoreNotFound(err) != nil {
		return service{}, fmt.Errorf("reading the CA: %w", err)
	}
	return service{namespace: k.namespace, ca: secret.Data["ca.crt"]}, nil
}

// writeWebhooks has both configurations be as they should. The validating one comes first: nothing gets in unchecked.
func (k *keeper) writeWebhooks(ctx context.Context, validating []admission.ValidatingWebhook,
	mutating func(now []admission.MutatingWebhook) []admission.MutatingWebhook) error {
	var v admission.ValidatingWebhookConfiguration
	err := k.write(ctx, &v, func() bool {
		before := v.Webhooks
		v.Webhooks = validating
		return !equality.Semantic.DeepEqual(before, validating)
	})
	if err != nil {
		return err
	}
	var m admission.MutatingWebhookConfiguration
	return k.write(ctx, &m, func() bool {
		before := m.Webhooks
		m.Webhooks = mutating(before)
		return !equality.Semantic.DeepEqual(before, m.Webhooks)
	})
}

// write changes a webhook configuration of the manifests. One that somebody has deleted cannot be made here, and is looked
// for again.
func (k *keeper) write(ctx context.Context, c client.Object, change func() bool) error {
	err := k.live.Get(ctx, types.NamespacedName{Name: ConfigurationName}, c)
	if apierrors.IsNotFound(err) {
		if kind := fmt.Sprintf("%T", c); k.missing.first(kind) {
			k.log.Info("a webhook configuration is missing; apply the manifests again", "kind", kind, "name", ConfigurationName)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("the webhooks of PersistentPodState: %w", err)
	}
	if !change() {
		return nil
	}
	return k.client.Update(ctx, c)
}

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// readCRD reads the CRD, whoever made it; nil if there is none.
func (k *keeper) readCRD(ctx context.Context) (*unstructured.Unstructured, error) {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(crdKind)
	err := k.live.Get(ctx, types.NamespacedName{Name: crdName}, crd)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return crd, err
}

// ensureCRD makes the CRD where there is none, and renews its own.
func (k *keeper) ensureCRD(ctx context.Context, have *unstructured.Unstructured) error {
	want, err := CRD()
	if err != nil {
		return err
	}
	if have == nil {
		k.log.Info("making the CRD of PersistentPodState: there is none")
		return k.client.Create(ctx, want)
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
	c, err := controller.NewTyped("persistentpodstate-keeper", mgr, controller.TypedOptions[struct{}]{Reconciler: k,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[struct{}](time.Second, lookEvery)})
	if err != nil {
		return err
	}
	return c.Watch(k.view.house.source(func() []struct{} { return []struct{}{{}} }))
}
