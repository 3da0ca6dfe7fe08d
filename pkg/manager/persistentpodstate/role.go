package persistentpodstate

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// kruiseConfiguration is the webhook configuration of Kruise. While it exists, Kruise serves
// PersistentPodStates.
const kruiseConfiguration = "kruise-mutating-webhook-configuration"

// pollInterval is how often a replica checks what no watch shows: whether Kruise is in the cluster,
// and which kinds the API server serves.
const pollInterval = 10 * time.Second

// crdName is the name of the CRD, leasehold's or Kruise's.
const crdName = "persistentpodstates.apps.kruise.io"

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// Why leasehold does not serve PersistentPodStates.
const (
	whyKruise = "Kruise serves PersistentPodStates in this cluster; leasehold does not, and continues to pin pods to " +
		"their addresses"
	whyUnfit = "leasehold does not serve PersistentPodStates: the CRD " + crdName + " is missing or not leasehold's, " +
		"which has status.targetUID in version v1beta1; docs/persistentpodstate.md explains how to replace that of " +
		"Kruise and keep its objects"
)

// A role says whether leasehold or Kruise serves PersistentPodStates. Each replica decides it by
// itself. While leasehold does not, its webhooks admit everything unchanged.
type role struct {
	live     client.Reader // reads from the API server, not from a cache
	isLeader func() bool
	events   ctrlrecorder.EventRecorder
	log      logr.Logger

	serving  atomic.Bool // false until the role was decided
	logged   string      // the last reason that was logged, "" if leasehold serves
	reported kube.Reported
}

// follow decides at intervals until ctx is done.
func (r *role) follow(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		call, cancel := context.WithTimeout(ctx, control.CallTimeout)
		defer cancel()
		if err := r.decide(call); err != nil && ctx.Err() == nil {
			r.log.Error(err, "looking for Kruise failed")
		}
	}, pollInterval)
	return nil
}

// decide decides the role. After an error the role stays. If leasehold does not serve
// PersistentPodStates, decide logs why, and the leader writes an Event on the CRD, once for each
// reason.
func (r *role) decide(ctx context.Context) error {
	webhooks := &metav1.PartialObjectMetadata{} // only whether there are any matters
	webhooks.SetGroupVersionKind(admission.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"))
	hasKruise, err := r.exists(ctx, kruiseConfiguration, webhooks)
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(crdKind)
	hasCRD, crdErr := r.exists(ctx, crdName, crd)
	if err := errors.Join(err, crdErr); err != nil {
		return err
	}
	reason, why := "", ""
	switch {
	case hasKruise:
		reason, why = reasonKruise, whyKruise
	case !hasCRD || !isFit(crd):
		reason, why = reasonUnfit, whyUnfit
	}
	r.serving.Store(why == "")
	if r.logged != why {
		r.logged = why
		r.log.Info("the role has changed", "serving", why == "", "reason", why)
	}
	if why != "" && hasCRD && r.isLeader() && r.reported.First(string(crd.GetUID())+why) {
		r.events.Eventf(crd, nil, corev1.EventTypeNormal, reason, "StandAside", "%s", why)
	}
	return nil
}

// exists reads a cluster-scoped object, and reports whether it exists.
func (r *role) exists(ctx context.Context, name string, o client.Object) (bool, error) {
	err := r.live.Get(ctx, types.NamespacedName{Name: name}, o)
	return err == nil, client.IgnoreNotFound(err)
}

// isFit reports whether leasehold can serve a CRD. Without status.targetUID, the API server removes
// that field from each status, and leasehold would write the status again and again. Kruise's CRD
// does not have it.
func isFit(crd *unstructured.Unstructured) bool {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, item := range versions {
		version, _ := item.(map[string]any)
		if version["name"] == pps.GroupVersion.Version && version["served"] == true {
			_, hasStatus, _ := unstructured.NestedMap(version, "subresources", "status")
			_, hasUID, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema", "properties", "status",
				"properties", "targetUID")
			return hasStatus && hasUID
		}
	}
	return false
}
