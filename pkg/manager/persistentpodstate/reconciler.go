package persistentpodstate

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// Reasons of the Events on pods, PersistentPodStates, workloads and the CRD.
const (
	// A label that a PersistentPodState requires was not applied to the pod, or was not recorded.
	reasonNotPossible = "PinNotPossible"
	// A PersistentPodState required the pod to return to a node that is gone or not ready, and the
	// pod was deleted.
	reasonReplaced = "PodReplaced"
	// The PersistentPodState, or the annotations of the workload, cannot be served, and why.
	reasonInvalid = "InvalidPersistentPodState"
	// The annotations of a pod are too large to be recorded.
	reasonLarge = "PersistentPodStateLarge"
	// Kruise is in the cluster, and leasehold serves no PersistentPodStates. On the CRD.
	reasonKruise = "KruisePresent"
	// The CRD of another program does not have what leasehold needs, and leasehold serves no
	// PersistentPodStates. On the CRD.
	reasonUnfit = "CRDUnfit"
)

// retryInterval is how soon an object is reconciled again when something was not known yet.
const retryInterval = time.Second

// A reconciler creates the PersistentPodStates for which workloads ask by annotations, keeps the
// status of all PersistentPodStates up to date, creates Events about what was not injected, and
// deletes pods that wait for a node that is gone. It runs in the leader.
type reconciler struct {
	view     *clusterView
	client   client.Client
	role     *role
	events   ctrlrecorder.EventRecorder
	log      logr.Logger
	reported kube.Reported
}

// Reconcile reconciles the PersistentPodState with a name, and the workloads with that name, whose
// generated PersistentPodState has the same. It has no effect while Kruise serves
// PersistentPodStates.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.role.serving.Load() {
		return reconcile.Result{RequeueAfter: pollInterval}, nil
	}
	if !r.view.HasSynced() {
		return reconcile.Result{RequeueAfter: retryInterval}, nil
	}
	if done, err := r.generate(ctx, req.NamespacedName); done || err != nil {
		return reconcile.Result{}, err
	}
	s, _ := r.view.objects.Get(req.String())
	if s == nil || s.object.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	o := &s.object                   // the states of its pods are decoded when they are needed
	if o.Spec.TargetRef.Name == "" { // limitSpec omits one that is longer than any
		r.warn(o, nil, reasonInvalid, "its target has no name that a workload may have; it has no effect")
		return reconcile.Result{}, nil
	}
	target := targetOf(o)
	if all := r.view.Objects(target); len(all) > 0 && all[0].object.Name != o.Name {
		r.warn(o, nil, reasonInvalid, fmt.Sprintf("older PersistentPodState %s has the target %s; this one has no "+
			"effect", all[0].object.Name, target))
		return reconcile.Result{}, nil
	}
	if s.isCut {
		r.warn(o, nil, reasonLarge, onlyTheFirst)
	}
	normal := o.DeepCopy()
	if err := normal.Spec.Normalize(nil); err == nil && !s.isCut && !equality.Semantic.DeepEqual(normal.Spec, o.Spec) {
		// The object was created or updated while no webhook could be called.
		return reconcile.Result{}, r.update(ctx, o, normal)
	}
	workload, known := r.view.Workload(target)
	if !known || !r.view.pods.HasSynced() {
		return reconcile.Result{RequeueAfter: retryInterval}, nil
	}
	o = s.Object()
	pods := r.view.pods.ByIndex(byTarget, target.String())
	r.report(o, pods)
	recordErr := r.record(ctx, o, computeStatus(o, workload, pods, r.view.node))
	requeueAfter, err := r.deleteStuck(ctx, o, pods)
	if err := errors.Join(recordErr, err); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: requeueAfter}, nil
}

// generate does what the function generate returns for the workloads with a name. It reports
// whether it has written something: the change enqueues the object again.
func (r *reconciler) generate(ctx context.Context, key types.NamespacedName) (done bool, err error) {
	for _, kind := range r.view.kinds {
		target := targetKey{kind.GroupKind(), key.Namespace, key.Name}
		workload, known := r.view.Workload(target)
		if !known {
			continue
		}
		var others []string
		for _, o := range r.view.Objects(target) {
			if o.object.Name != key.Name {
				others = append(others, o.object.Name)
			}
		}
		var object *pps.PersistentPodState
		if s, found := r.view.objects.Get(key.String()); found {
			object = &s.object
		}
		want, problem := generate(target, workload, object, others)
		if problem != "" && r.reported.First(string(workload.UID)+problem) {
			control.Warn(r.events, workload.ref(), nil, reasonInvalid, "Generate", problem)
		}
		switch {
		case want == object:
			continue
		case object == nil:
			if err = r.client.Create(ctx, want); apierrors.IsAlreadyExists(err) {
				err = nil // the informer has not seen it yet
			}
			err = control.IgnoreRace(err)
		case want == nil:
			_, err = control.Delete(ctx, r.client, object, object.ResourceVersion)
		default:
			err = r.update(ctx, object, want)
		}
		return true, err
	}
	return false, nil
}

// update writes the difference of two states of a PersistentPodState, unless it has changed since
// it was observed.
func (r *reconciler) update(ctx context.Context, before, now *pps.PersistentPodState) error {
	return control.IgnoreRace(r.client.Patch(ctx, now,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// record writes the status, as far as it is kept, if it differs from the present one.
func (r *reconciler) record(ctx context.Context, o *pps.PersistentPodState, status pps.PersistentPodStateStatus) error {
	status.PodStates, _ = limitStates(&o.Spec, status.PodStates)
	if equality.Semantic.DeepEqual(o.Status, status) {
		return nil
	}
	recorded := o.DeepCopy()
	recorded.Status = status
	return control.IgnoreRace(r.client.Status().Update(ctx, recorded))
}

// report creates Events on new pods about what was not injected into them, and Events on the
// PersistentPodState about labels that the nodes of its Ready pods do not have.
func (r *reconciler) report(o *pps.PersistentPodState, pods []*workloadPod) {
	for _, p := range pods {
		pod := podRef(p)
		if p.Reason != "" && time.Since(p.Created) < control.MaxReportAge &&
			r.reported.First(string(p.UID)) {
			control.Warn(r.events, pod, nil, reasonNotPossible, "Inject", "PersistentPodState "+o.Name+": "+p.Reason)
		}
		if p.TooLong {
			r.warn(o, pod, reasonLarge, fmt.Sprintf("the annotations of pod %s that are to be recorded are more than "+
				"%d, or have more than %d bytes: none of them is", p.name, maxNames, maxRecorded))
		}
		node := r.view.node(p.Node)
		if node == nil || p.stage != ready {
			continue
		}
		if keys := missing(o, node.Labels); len(keys) > 0 {
			ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: p.Node}
			r.warn(o, ref, reasonNotPossible, fmt.Sprintf("node %s has no label %s: pods that ran there are not "+
				"restricted by it", p.Node, strings.Join(keys, ", ")))
		}
	}
}

// warn creates a warning Event on a PersistentPodState, once for each text. Events that differ only
// in their text would be merged, so Events about different nodes need different related objects.
func (r *reconciler) warn(o *pps.PersistentPodState, related runtime.Object, reason, text string) {
	if r.reported.First(string(o.UID) + text) {
		ref := o.DeepCopy()
		ref.SetGroupVersionKind(objectKind)
		control.Warn(r.events, ref, related, reason, "Record", text)
	}
}

// deleteStuck deletes the pods that wait for a hostname that inject added because of o, and that no
// node has, or only one that has not been ready for longer than the pod's patience: the API server
// does not allow a hostname to be removed from the node selector of an existing pod. The workload
// recreates the pods, and the new ones do not require the hostname. deleteStuck uses only the pods'
// selectors, not the recorded status, which may name another node. requeueAfter is the time until
// the pods that wait are looked at again, 0 if none waits.
func (r *reconciler) deleteStuck(ctx context.Context, o *pps.PersistentPodState, pods []*workloadPod,
) (requeueAfter time.Duration, err error) {
	for _, p := range pods {
		if !isWaitingFor(o, p) {
			continue
		}
		wait := pollInterval
		if due := r.due(p); !due.IsZero() {
			wait = min(wait, time.Until(due))
		}
		if wait <= 0 {
			err = errors.Join(err, r.deletePod(ctx, p))
		} else if requeueAfter == 0 || wait < requeueAfter {
			requeueAfter = wait
		}
	}
	return requeueAfter, err
}

// isWaitingFor reports whether a pod that is not scheduled requires a hostname because of a
// PersistentPodState.
func isWaitingFor(o *pps.PersistentPodState, p *workloadPod) bool {
	return p.stage == waiting && !p.Terminating && p.Hostname != "" && p.Object == o.Name
}

// patienceMargin is how much longer than its patience, or the grace period, a pod waits: the
// replica that admits the successor may have another clock.
const patienceMargin = 2 * time.Second

// due returns when a waiting pod may be deleted, zero if it may not. The pod must be older than the
// grace period or its patience, so that its successors are not deleted one after the other. For a
// node that is gone, this replica must also have run for the grace period, because the node may
// have been removed before that.
func (r *reconciler) due(pod *workloadPod) time.Time {
	nodes := append(r.view.present(), nil)
	i := slices.IndexFunc(nodes, func(n *corev1.Node) bool {
		return n == nil || n.Labels[corev1.LabelHostname] == pod.Hostname
	})
	since, wait := r.view.awayFrom(nodes[i], pod.Patience)
	if since.IsZero() {
		return since
	}
	return slices.MaxFunc([]time.Time{pod.Created, since}, time.Time.Compare).Add(wait + patienceMargin)
}

// deletePod deletes a pod and creates an Event about it, unless the pod has changed since it was
// observed.
func (r *reconciler) deletePod(ctx context.Context, p *workloadPod) error {
	pod := podRef(p)
	deleted, err := control.Delete(ctx, r.client, pod, p.ResourceVersion)
	if deleted {
		r.log.Info("deleted a pod that waited for a node that is gone or not ready", "pod",
			pod.Namespace+"/"+pod.Name, "hostname", p.Hostname)
		control.Warn(r.events, pod, nil, reasonReplaced, "Replace", "deleted, because it waited for node "+p.Hostname+
			", which is gone or not ready; its successor may run elsewhere")
	}
	if err != nil {
		return fmt.Errorf("deleting pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func podRef(p *workloadPod) *corev1.Pod {
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.target.Namespace, Name: p.name, UID: p.UID}}
}
