package persistentpodstate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/once"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Reasons of the Events on pods, PersistentPodStates, workloads and the CRD.
const (
	// A label that a PersistentPodState requires was not applied to the pod, or was not recorded.
	reasonNotPossible = "PinNotPossible"
	// The pod was required to return to a node that is gone or not ready, and was deleted.
	reasonReplaced = "PodReplaced"
	// The PersistentPodState, or the annotations of the workload, cannot be served, and why.
	reasonInvalid = "InvalidPersistentPodState"
	// The PersistentPodState will soon be too large for the API server, which then stores no
	// changes; or the annotations of a pod are too large to be recorded.
	reasonLarge = "PersistentPodStateLarge"
	// Kruise's manager is ready, and leasehold serves no PersistentPodStates. On the CRD.
	reasonKruise = "KruisePresent"
	// The CRD of another program does not have what leasehold needs, and leasehold serves no
	// PersistentPodStates. On the CRD.
	reasonUnfit = "CRDUnfit"
)

// largeObject is the size in bytes from which a PersistentPodState gets the Event reasonLarge. etcd
// rejects requests of more than 1.5 MiB (--max-request-bytes).
const largeObject = 1 << 20

// maxReportAge is the age up to which a pod gets an Event about its creation. Older pods get none,
// so that a new leader does not repeat the Events of the former leader.
const maxReportAge = 30 * time.Second

// A recorder is the controller that keeps the status of PersistentPodStates up to date, creates
// Events about what was not injected, and deletes pods that wait for a node that is gone. It runs
// in the leader.
type recorder struct {
	view        *clusterView
	client      client.Client
	live        client.Reader // reads from the API server, not from a cache
	role        *role
	releaseGone bool
	grace       time.Duration // how long a removed node counts as present, and how old a pod must be to be deleted
	events      ctrlrecorder.EventRecorder
	log         logr.Logger
	reported    once.Set
}

// Reconcile updates the status of one PersistentPodState and deletes the pods that stuck returns.
// It has no effect while Kruise serves PersistentPodStates, or on an object with the same target as
// an older one.
func (r *recorder) Reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	o := r.view.Object(key)
	if o == nil || o.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if wait := r.role.requeueAfter(); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if isUnfit(o) {
		r.warn(o, nil, reasonInvalid, fmt.Sprintf("its fields have other types than leasehold's, or it names more "+
			"than %d labels and annotations with %d bytes; it has no effect", maxNames, maxNameBytes))
		return reconcile.Result{}, nil
	}
	if !r.view.HasSynced() || !r.view.PodsSynced() {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	target := targetOf(o)
	if all := r.view.Objects(target); len(all) > 0 && all[0].Name != o.Name {
		r.warn(o, nil, reasonInvalid,
			fmt.Sprintf("older PersistentPodState %s has the target %s; this one has no effect", all[0].Name, target))
		return reconcile.Result{}, nil
	}
	if r.role.ownsCRD.Load() {
		normal := o.DeepCopy()
		if err := normal.Spec.Normalize(nil); err == nil && !equality.Semantic.DeepEqual(normal.Spec, o.Spec) {
			// The object was created or updated while no webhook normalized it. The update enqueues
			// it again.
			return reconcile.Result{}, ignoreConflict(rewrite(ctx, r.live, r.client, normal))
		}
	}
	workload, err := r.view.Workload(target)
	if err != nil {
		return requeue(err)
	}
	pods := r.view.history.Pods(target)
	nodes, err := r.view.Nodes(ctx, nodesOf(o, pods)...)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.report(o, pods, nodes)
	recordErr := r.record(ctx, o, computeStatus(o, workload, pods, nodes))
	requeueAfter, err := r.deleteStuck(ctx, o, pods)
	if err := errors.Join(recordErr, err); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: requeueAfter}, nil
}

// record writes the status, if it differs from the present one.
func (r *recorder) record(ctx context.Context, o *pps.PersistentPodState, status pps.PersistentPodStateStatus) error {
	if isEqual(o.Status, status) {
		return nil
	}
	recorded := o.DeepCopy()
	recorded.Status = status
	if b, err := json.Marshal(recorded); err == nil && len(b) > largeObject {
		r.warn(o, nil, reasonLarge, "the object is larger than 1 MiB, and etcd stores at most 1.5 MiB by default: "+
			"have the pods of fewer replicas, or fewer and smaller annotations, recorded in one object")
	}
	return ignoreConflict(r.client.Status().Update(ctx, recorded))
}

// rewrite writes the spec of an object, its controller and the label of generated objects. A view
// does not have the metadata of others, so that rewrite reads the object from the API server. If it
// has changed since, rewrite does nothing: the change enqueues the object.
func rewrite(ctx context.Context, live client.Reader, c client.Client, o *pps.PersistentPodState) error {
	var list pps.PersistentPodStateList
	err := live.List(ctx, &list, client.InNamespace(o.Namespace), client.MatchingFields{"metadata.name": o.Name})
	if err != nil || len(list.Items) != 1 || list.Items[0].ResourceVersion != o.ResourceVersion {
		return err
	}
	now := &list.Items[0]
	now.Spec = o.Spec
	if isGenerated(o) {
		now.OwnerReferences = o.OwnerReferences
		metav1.SetMetaDataLabel(&now.ObjectMeta, labelGenerated, generatedValue)
	}
	return c.Update(ctx, now)
}

// requeue returns the result of a Reconcile in which the view returned err. If err only means that
// the informers do not have the data yet, Reconcile is called again later, and requeue returns no
// error.
func requeue(err error) (reconcile.Result, error) {
	switch {
	case errors.Is(err, errNoKind):
		return reconcile.Result{RequeueAfter: resyncInterval}, nil
	case errors.Is(err, errNotSynced):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{}, err
}

// ignoreConflict returns nil for the error of a write to an object that was changed or deleted
// meanwhile, because that change enqueues the object again. It returns other errors.
func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// nodesOf returns the names of the nodes whose labels report and computeStatus need.
func nodesOf(o *pps.PersistentPodState, pods map[string]podHistory) []string {
	var names []string
	for _, s := range o.Status.PodStates {
		names = append(names, s.NodeName)
	}
	for _, p := range pods {
		if p.Ready != nil {
			names = append(names, p.Ready.Node)
		}
	}
	return names
}

// report creates Events on new pods about what was not injected into them, and Events on the
// PersistentPodState about labels that the nodes of its Ready pods do not have.
func (r *recorder) report(o *pps.PersistentPodState, pods map[string]podHistory, nodes nodeLabels) {
	for name, p := range pods {
		if !p.Exists() {
			continue
		}
		why := p.Pod.Annotations[annotationReason]
		if why != "" && time.Since(p.Pod.Created) < maxReportAge && r.reported.First(string(p.Pod.UID), time.Now()) {
			r.events.Eventf(podRef(o.Namespace, name, p.Pod.UID), nil, corev1.EventTypeWarning, reasonNotPossible,
				"Inject", "PersistentPodState %s: %s", o.Name, why)
		}
		if p.Pod.TooLong {
			r.warn(o, podRef(o.Namespace, name, p.Pod.UID), reasonLarge, fmt.Sprintf("the annotations of pod %s that "+
				"are to be recorded have more than %d bytes: none of them is", name, maxRecorded))
		}
		if p.Pod.stage != ready {
			continue
		}
		if labels, exists := nodes(p.Pod.Node); exists {
			if keys := missing(o, labels); len(keys) > 0 {
				node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
					ObjectMeta: metav1.ObjectMeta{Name: p.Pod.Node}}
				r.warn(o, node, reasonNotPossible,
					fmt.Sprintf("node %s has no label %s: pods that ran there are not restricted by it",
						p.Pod.Node, strings.Join(keys, ", ")))
			}
		}
	}
}

// warn creates a warning Event on a PersistentPodState, once for each text. Events that differ only
// in their text would be merged, so Events about different nodes need different related objects.
func (r *recorder) warn(o *pps.PersistentPodState, related runtime.Object, reason, text string) {
	if r.reported.First(string(o.UID)+text, time.Now()) {
		ref := o.DeepCopy()
		ref.SetGroupVersionKind(pps.GroupVersion.WithKind("PersistentPodState"))
		r.events.Eventf(ref, related, corev1.EventTypeWarning, reason, "Record", "%s", text)
	}
}

// deleteStuck deletes the pods that stuck returns, because the API server does not allow a hostname
// to be removed from the node selector of an existing pod. The workload recreates the pods, and the
// new ones do not require the hostname. requeueAfter is the time until the next pod may have to be
// deleted, 0 for none.
func (r *recorder) deleteStuck(
	ctx context.Context, o *pps.PersistentPodState, pods map[string]podHistory,
) (requeueAfter time.Duration, err error) {
	names, requeueAfter, err := r.stuck(ctx, o, pods, time.Now())
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		err = errors.Join(err, r.deletePod(ctx, o.Namespace, name, pods[name].Pod))
	}
	return requeueAfter, err
}

// stuck returns the names of the pods that wait for a hostname that Inject added because of o, and
// that no node has, or only one that has not been ready for longer than the pod's patience. stuck
// uses only the pods' selectors, not the recorded status, which may name another node.
//
// A pod is returned only when it is older than the grace period or its patience, so that its
// successors are not deleted one after the other. This replica must also have watched nodes for the
// grace period, because a node may have been removed before the watch began. requeueAfter is the
// time until the first pod that is still too young is old enough, 0 if there is none.
func (r *recorder) stuck(
	ctx context.Context, o *pps.PersistentPodState, pods map[string]podHistory, now time.Time,
) (names []string, requeueAfter time.Duration, err error) {
	watching := r.view.watchingSince()
	for name, p := range pods {
		isWaiting := p.Exists() && !p.Pod.Terminating && p.Pod.stage == waiting && p.Pod.Hostname != ""
		if !isWaiting || p.Pod.Annotations[pps.AnnotationInjected] != o.Name {
			continue
		}
		due, err := r.due(ctx, p.Pod, watching)
		if err != nil {
			return nil, 0, err
		}
		if due.IsZero() {
			continue
		}
		if wait := due.Sub(now); wait <= 0 {
			names = append(names, name)
		} else if requeueAfter == 0 || wait < requeueAfter {
			requeueAfter = wait
		}
	}
	return names, requeueAfter, nil
}

// due returns when a waiting pod may be deleted, zero if it may not. See stuck.
func (r *recorder) due(ctx context.Context, pod *observation, watching time.Time) (time.Time, error) {
	exists, err := r.view.HostExists(ctx, pod.Hostname)
	switch {
	case err != nil || !exists && !r.releaseGone:
		return time.Time{}, err
	case !exists:
		return later(pod.Created, watching).Add(r.grace), nil
	case pod.Patience == lease.Forever:
		return time.Time{}, nil
	}
	since, err := r.view.HostNotReadySince(ctx, pod.Hostname)
	if since.IsZero() {
		return time.Time{}, err
	}
	// The replica that admits the successor may have another clock.
	return later(pod.Created, since).Add(time.Duration(pod.Patience) + patienceMargin), err
}

// patienceMargin is how much longer than its patience a pod waits.
const patienceMargin = 2 * time.Second

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// deletePod deletes a pod and creates an Event about it, unless the pod has changed since the
// observation seen.
func (r *recorder) deletePod(ctx context.Context, namespace, name string, seen *observation) error {
	pod := podRef(namespace, name, seen.UID)
	err := r.client.Delete(ctx, pod, client.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion})
	if err == nil {
		r.log.Info("deleted a pod that waited for a node that is gone or not ready", "pod", namespace+"/"+name,
			"hostname", seen.Hostname)
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, reasonReplaced, "Replace",
			"deleted, because it waited for node %s, which is gone or not ready; its successor may run elsewhere",
			seen.Hostname)
	}
	if ignoreConflict(err) != nil {
		return fmt.Errorf("deleting pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

func podRef(namespace, name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}}
}

func (r *recorder) setup(mgr manager.Manager) error {
	c, err := controller.NewTyped("persistentpodstate", mgr,
		controller.TypedOptions[types.NamespacedName]{Reconciler: r})
	if err != nil {
		return err
	}
	return c.Watch(r.view.states.source(r.view.allStates))
}
