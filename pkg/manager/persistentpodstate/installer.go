package persistentpodstate

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

	"github.com/leasehold-cni/leasehold/pkg/kube/once"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
)

// Kruise serves PersistentPodStates if the webhook configuration exists and the Deployment of its
// manager is ready.
const (
	kruiseConfiguration = "kruise-mutating-webhook-configuration"
	kruiseNamespace     = "kruise-system" // if its webhooks have no service
	kruiseManager       = "kruise-controller-manager"
)

// kruiseGrace is how long the manager of Kruise may be unready before leasehold serves
// PersistentPodStates instead. It covers a drain or an upgrade.
const kruiseGrace = 3 * time.Minute

// resyncInterval is how often the installer reconciles without an event.
const resyncInterval = 10 * time.Second

// role says whether leasehold or Kruise serves PersistentPodStates. The installer of the leader
// decides it, and the other controllers of the leader read it.
type role struct {
	state   atomic.Int32
	ownsCRD atomic.Bool // leasehold created the CRD, which has both keys and nodeTopologyKeys
}

const (
	undecided int32 = iota
	serving         // leasehold serves them
	standby         // Kruise serves them, or the CRD cannot be used
)

// requeueAfter returns the time after which the other controllers check the role again, or 0 if
// leasehold serves PersistentPodStates and the controllers may work.
func (r *role) requeueAfter() time.Duration {
	switch r.state.Load() {
	case serving:
		return 0
	case standby:
		return resyncInterval
	}
	return time.Second
}

// An installer is the controller that decides the role, creates the CRD, and fills the webhook
// configurations. It runs in the leader.
type installer struct {
	view      *clusterView
	kinds     kindList
	namespace string
	client    client.Client // reads the Secret from the manager's cache
	live      client.Reader
	role      *role
	events    ctrlrecorder.EventRecorder
	log       logr.Logger

	kruise  kruise
	reason  string   // why the role is standby
	missing once.Set // webhook configurations that were reported missing
}

// Reconcile decides the role. In the role serving, it writes the webhook configurations and the
// CRD. In the role standby, it removes the webhooks, so that they do not act on the objects of
// Kruise.
func (i *installer) Reconcile(ctx context.Context, _ struct{}) (reconcile.Result, error) {
	configured, ready, err := i.findKruise(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch i.kruise.decide(i.role.state.Load(), configured, ready, time.Now()) {
	case standby:
		return reconcile.Result{RequeueAfter: resyncInterval}, i.standBy(ctx, reasonKruise,
			"Kruise serves PersistentPodStates in this cluster; "+
				"leasehold does not, and continues to pin pods to their addresses")
	case undecided:
		return reconcile.Result{RequeueAfter: resyncInterval}, nil
	}
	crd, err := i.readCRD(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if why := unsupported(crd); why != "" {
		return reconcile.Result{RequeueAfter: resyncInterval}, i.standBy(ctx, reasonUnfit,
			"leasehold does not serve PersistentPodStates: "+why)
	}
	s, err := i.service(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if s.ca == nil {
		return reconcile.Result{RequeueAfter: time.Second}, nil // the certificate has not been created yet
	}
	// The webhooks are written before the CRD, so that no object is created without being
	// normalized and validated.
	err = i.writeWebhooks(ctx, s.validating(), func(present []admission.MutatingWebhook) []admission.MutatingWebhook {
		// Until the informers have synced, it is not known whether there are PersistentPodStates.
		// Meanwhile the pod webhook stays if it exists.
		return s.mutating(i.kinds, i.view.Count() > 0 || !i.view.HasSynced() && len(present) > 1)
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := i.ensureCRD(ctx, crd); err != nil {
		return reconcile.Result{}, err
	}
	if i.role.state.Swap(serving) == standby {
		i.log.Info("serving PersistentPodStates")
	}
	i.reason = ""
	return reconcile.Result{RequeueAfter: resyncInterval}, nil
}

// kruise is the state of Kruise's manager.
type kruise struct {
	unreadySince time.Time // zero while it is ready, or not configured
}

// decide returns the new role. It returns standby if Kruise is configured and ready, serving if
// Kruise is not configured. While Kruise is configured but not ready, it may be being installed,
// upgraded or removed: decide returns the present role for kruiseGrace, then serving.
func (k *kruise) decide(role int32, configured, ready bool, now time.Time) int32 {
	switch {
	case !configured:
		k.unreadySince = time.Time{}
		return serving
	case ready:
		k.unreadySince = time.Time{}
		return standby
	}
	if k.unreadySince.IsZero() {
		k.unreadySince = now
	}
	if now.Sub(k.unreadySince) >= kruiseGrace {
		return serving
	}
	return role
}

// findKruise returns whether the webhooks of Kruise are configured, and whether its manager is
// ready.
func (i *installer) findKruise(ctx context.Context) (configured, ready bool, err error) {
	var hooks admission.MutatingWebhookConfiguration
	if err := i.live.Get(ctx, types.NamespacedName{Name: kruiseConfiguration}, &hooks); err != nil {
		return false, false, client.IgnoreNotFound(err)
	}
	var d appsv1.Deployment
	err = i.live.Get(ctx, types.NamespacedName{Namespace: namespaceOf(hooks), Name: kruiseManager}, &d)
	return true, err == nil && d.Status.ReadyReplicas > 0, client.IgnoreNotFound(err)
}

// namespaceOf returns the namespace of Kruise's manager, which its webhooks call.
func namespaceOf(hooks admission.MutatingWebhookConfiguration) string {
	for _, h := range hooks.Webhooks {
		if h.ClientConfig.Service != nil {
			return h.ClientConfig.Service.Namespace
		}
	}
	return kruiseNamespace
}

// standBy sets the role to standby and removes leasehold's webhooks. When why changes, standBy logs
// it and writes an Event with the given reason on the CRD.
func (i *installer) standBy(ctx context.Context, reason, why string) error {
	i.role.state.Store(standby)
	err := i.writeWebhooks(ctx, nil, func([]admission.MutatingWebhook) []admission.MutatingWebhook { return nil })
	if err != nil || i.reason == why {
		return err
	}
	i.reason = why
	i.log.Info(why)
	var crd metav1.PartialObjectMetadata
	crd.SetGroupVersionKind(crdKind)
	if err := i.live.Get(ctx, types.NamespacedName{Name: crdName}, &crd); err == nil {
		i.events.Eventf(&crd, nil, corev1.EventTypeNormal, reason, "StandAside", "%s", why)
	}
	return nil
}

// service returns what the webhook configurations need to know about the Service. Its ca is nil as
// long as the certificate has not been created.
func (i *installer) service(ctx context.Context) (service, error) {
	var secret corev1.Secret
	err := i.client.Get(ctx, types.NamespacedName{Namespace: i.namespace, Name: wellknown.ManagerName}, &secret)
	if client.IgnoreNotFound(err) != nil {
		return service{}, fmt.Errorf("reading the CA: %w", err)
	}
	return service{namespace: i.namespace, ca: secret.Data["ca.crt"]}, nil
}

// writeWebhooks updates both configurations: the validating one first, so that no object is changed
// by the mutating webhook without being validated. mutating is called with the present entries,
// because some may have to stay, and returns the wanted ones. It is called again after a conflict.
func (i *installer) writeWebhooks(ctx context.Context, validating []admission.ValidatingWebhook,
	mutating func(present []admission.MutatingWebhook) []admission.MutatingWebhook) error {
	var v admission.ValidatingWebhookConfiguration
	err := i.write(ctx, &v, func() bool {
		before := v.Webhooks
		v.Webhooks = validating
		return !equality.Semantic.DeepEqual(before, validating)
	})
	if err != nil {
		return err
	}
	var m admission.MutatingWebhookConfiguration
	return i.write(ctx, &m, func() bool {
		before := m.Webhooks
		m.Webhooks = mutating(before)
		return !equality.Semantic.DeepEqual(before, m.Webhooks)
	})
}

// write reads a webhook configuration into c, calls change, and updates the configuration if change
// reports true. If the configuration does not exist, write logs that once and returns nil, because
// the manager is not allowed to create it. The next call looks it up again.
func (i *installer) write(ctx context.Context, c client.Object, change func() bool) error {
	err := i.live.Get(ctx, types.NamespacedName{Name: configurationName}, c)
	if apierrors.IsNotFound(err) {
		if kind := fmt.Sprintf("%T", c); i.missing.First(kind, time.Now()) {
			i.log.Info("webhook configuration missing; apply the manifests again", "kind", kind,
				"name", configurationName)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the webhook configuration of PersistentPodState: %w", err)
	}
	if !change() {
		return nil
	}
	return i.client.Update(ctx, c)
}

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// readCRD returns the existing CRD, nil if there is none.
func (i *installer) readCRD(ctx context.Context) (*unstructured.Unstructured, error) {
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(crdKind)
	err := i.live.Get(ctx, types.NamespacedName{Name: crdName}, crd)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return crd, err
}

// ensureCRD creates the CRD if there is none. It updates the CRD to the embedded one if leasehold
// created it and the hashes differ. have is the existing CRD, nil if there is none.
func (i *installer) ensureCRD(ctx context.Context, have *unstructured.Unstructured) error {
	want := embeddedCRD()
	if have == nil {
		i.log.Info("creating the CRD of PersistentPodState")
		return i.client.Create(ctx, want)
	}
	ours := have.GetLabels()[managedBy] == us
	i.role.ownsCRD.Store(ours)
	if !ours || have.GetDeletionTimestamp() != nil ||
		have.GetAnnotations()[crdVersion] == want.GetAnnotations()[crdVersion] {
		return nil
	}
	want.SetResourceVersion(have.GetResourceVersion())
	return i.client.Update(ctx, want)
}

func (i *installer) setup(mgr manager.Manager) error {
	c, err := controller.NewTyped("persistentpodstate-installer", mgr, controller.TypedOptions[struct{}]{Reconciler: i,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[struct{}](time.Second, resyncInterval)})
	if err != nil {
		return err
	}
	return c.Watch(i.view.cluster.source(func() []struct{} { return []struct{}{{}} }))
}
