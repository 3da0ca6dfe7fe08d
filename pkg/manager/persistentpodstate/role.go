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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
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

// pollInterval is how often a replica checks what no watch shows: whether Kruise is in the cluster,
// and which kinds the API server serves.
const pollInterval = 10 * time.Second

// crdName is the name of the CRD, leasehold's or Kruise's.
const crdName = "persistentpodstates.apps.kruise.io"

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// A role says whether leasehold or Kruise serves PersistentPodStates. Each replica decides it by
// itself. While Kruise does, leasehold's webhooks admit everything unchanged.
type role struct {
	live     client.Reader // reads from the API server, not from a cache
	isLeader func() bool
	events   ctrlrecorder.EventRecorder
	log      logr.Logger

	state        atomic.Int32
	unreadySince time.Time // since when Kruise is configured and its manager is not ready; zero if it is not so
	logged, told string    // the last reason for standby that was logged, and that an Event told
}

const (
	undecided int32 = iota
	serving         // leasehold serves them
	standby         // Kruise serves them, or the CRD cannot be used
)

func (r *role) serves() bool { return r.state.Load() == serving }

// follow decides at intervals until ctx is done.
func (r *role) follow(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		call, cancel := context.WithTimeout(ctx, control.CallTimeout)
		defer cancel()
		if err := r.decide(call, time.Now()); err != nil && ctx.Err() == nil {
			r.log.Error(err, "looking for Kruise failed")
		}
	}, pollInterval)
	return nil
}

// decide decides the role. After an error the role stays.
func (r *role) decide(ctx context.Context, now time.Time) error {
	configured, ready, err := r.findKruise(ctx)
	if err != nil {
		return err
	}
	state := r.state.Load()
	if state = r.next(state, configured, ready, now); state == undecided {
		return nil
	}
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(crdKind)
	err = r.live.Get(ctx, types.NamespacedName{Name: crdName}, crd)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	reason, why := reasonKruise, "Kruise serves PersistentPodStates in this cluster; "+
		"leasehold does not, and continues to pin pods to their addresses"
	if state == serving {
		reason, why = reasonUnfit, unsupported(crd)
	}
	if why != "" {
		state = standby
		r.report(crd, reason, why)
	} else if r.logged != "" {
		r.logged, r.told = "", ""
		r.log.Info("serving PersistentPodStates")
	}
	r.state.Store(state)
	return nil
}

// next returns the new state. It is standby if Kruise is configured and ready, serving if Kruise is
// not configured. While Kruise is configured but not ready, it may be being installed, upgraded or
// removed: the state stays for kruiseGrace, then it is serving.
func (r *role) next(state int32, configured, ready bool, now time.Time) int32 {
	switch {
	case !configured:
		r.unreadySince = time.Time{}
		return serving
	case ready:
		r.unreadySince = time.Time{}
		return standby
	case r.unreadySince.IsZero():
		r.unreadySince = now
	}
	if now.Sub(r.unreadySince) >= kruiseGrace {
		return serving
	}
	return state
}

// findKruise returns whether the webhooks of Kruise are configured, and whether its manager is
// ready.
func (r *role) findKruise(ctx context.Context) (configured, ready bool, err error) {
	var hooks admission.MutatingWebhookConfiguration
	if err := r.live.Get(ctx, types.NamespacedName{Name: kruiseConfiguration}, &hooks); err != nil {
		return false, false, client.IgnoreNotFound(err)
	}
	namespace := kruiseNamespace
	for _, h := range hooks.Webhooks {
		if h.ClientConfig.Service != nil {
			namespace = h.ClientConfig.Service.Namespace
		}
	}
	var d appsv1.Deployment
	err = r.live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: kruiseManager}, &d)
	return true, err == nil && d.Status.ReadyReplicas > 0, client.IgnoreNotFound(err)
}

// report logs why leasehold does not serve PersistentPodStates, and the leader writes an Event on
// the CRD, once for each reason.
func (r *role) report(crd *unstructured.Unstructured, reason, why string) {
	if r.logged != why {
		r.logged = why
		r.log.Info(why)
	}
	if r.told != why && r.isLeader() && crd.GetUID() != "" {
		r.told = why
		r.events.Eventf(crd, nil, corev1.EventTypeNormal, reason, "StandAside", "%s", why)
	}
}

// unsupported returns why leasehold cannot serve a CRD, "" if it can. Without status.targetUID, the
// API server removes that field from each status, and leasehold would write the status again and
// again. Kruise's CRD does not have it.
func unsupported(crd *unstructured.Unstructured) string {
	const not = "leasehold does not serve PersistentPodStates: "
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if len(versions) == 0 {
		return not + "the CRD " + crdName + " is missing; apply the manifests of leasehold again"
	}
	for _, item := range versions {
		version, _ := item.(map[string]any)
		if version["name"] != pps.GroupVersion.Version || version["served"] != true {
			continue
		}
		for field, path := range map[string][]string{"status subresource": {"subresources", "status"},
			"status.targetUID": {"schema", "openAPIV3Schema", "properties", "status", "properties", "targetUID"}} {
			if _, has, _ := unstructured.NestedMap(version, path...); !has {
				return fmt.Sprintf(not+"version %s of its CRD, which is not leasehold's, has no %s: it is Kruise's; "+
					"docs/persistentpodstate.md explains how to replace it and keep its objects",
					pps.GroupVersion.Version, field)
			}
		}
		return ""
	}
	return fmt.Sprintf(not+"its CRD, which is not leasehold's, does not have version %s: it is from an older Kruise",
		pps.GroupVersion.Version)
}
