package topology

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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
	"github.com/leasehold-cni/leasehold/pkg/kube/meta"
)

// The events of this room: on pods, PersistentPodStates and workloads.
const (
	reasonNotPossible = "PinNotPossible"
	reasonReleased    = "PinReleased"
	reasonInvalid     = "InvalidPersistentPodState"
)

// newsLife is how old a pod may be to be spoken of: a leader that was just elected does not repeat its predecessor.
const newsLife = 30 * time.Second

// A recorder keeps the status of PersistentPodStates true, and says what could not be done. The leader does.
type recorder struct {
	view    *View
	client  client.Client
	stance  *stance
	release bool
	grace   time.Duration // how long a node that has left counts as there, and how old a pod must be to be released
	events  ctrlrecorder.EventRecorder
	log     logr.Logger
	said    once
}

// Reconcile looks at one PersistentPodState and its pods.
func (r *recorder) Reconcile(ctx context.Context, key types.NamespacedName) (reconcile.Result, error) {
	o := r.view.Object(key)
	if o == nil || o.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if wait := r.stance.wait(); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if !r.view.Known() || !r.view.PodsKnown() {
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	target := targetOf(o)
	if all := r.view.Objects(target); len(all) > 0 && all[0].Name != o.Name {
		r.tell(o, nil, reasonInvalid, fmt.Sprintf("PersistentPodState %s is older and has %s; this one has no effect", all[0].Name, target))
		return reconcile.Result{}, nil
	}
	if r.stance.ours.Load() {
		normal := o.DeepCopy()
		if err := normal.Spec.Normalize(nil); err == nil && !equality.Semantic.DeepEqual(normal.Spec, o.Spec) {
			// It was written while nobody normalised it; its change is the next occasion.
			return reconcile.Result{}, ignoreLost(r.client.Update(ctx, normal))
		}
	}
	workload, err := r.view.Workload(target)
	if err != nil {
		return again(err)
	}
	pods := r.view.sights.Of(target)
	nodes, err := r.view.Nodes(ctx, nodesOf(o, pods)...)
	if err != nil {
		return reconcile.Result{}, err
	}
	r.explain(o, pods, nodes)
	unrecorded := r.record(ctx, o, Status(o, workload, pods, nodes))
	later, err := r.letGo(ctx, o, pods)
	if err := errors.Join(unrecorded, err); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: later}, nil
}

func (r *recorder) record(ctx context.Context, o *pps.PersistentPodState, status pps.PersistentPodStateStatus) error {
	if same(o.Status, status) {
		return nil
	}
	recorded := o.DeepCopy()
	recorded.Status = status
	return ignoreLost(r.client.Status().Update(ctx, recorded))
}

// again is when to look at something again of which too little is known.
func again(err error) (reconcile.Result, error) {
	switch {
	case errors.Is(err, errNoKind):
		return reconcile.Result{RequeueAfter: lookEvery}, nil
	case errors.Is(err, errUnknown):
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{}, err
}

// ignoreLost passes over a write that came too late: what was changed meanwhile rings by itself (FIELD, P14).
func ignoreLost(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func nodesOf(o *pps.PersistentPodState, pods map[string]Sight) []string {
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

// explain says on pods what kept them from being bound, and on the object which labels their nodes do not have.
func (r *recorder) explain(o *pps.PersistentPodState, pods map[string]Sight, nodes Nodes) {
	for name, p := range pods {
		if !p.Alive() {
			continue
		}
		why := p.Pod.Annotations[meta.AnnotationTopologyReason]
		if why != "" && time.Since(p.Pod.Created) < newsLife && r.said.first(string(p.Pod.UID)) {
			r.events.Eventf(podRef(o.Namespace, name, p.Pod.UID), nil, corev1.EventTypeWarning, reasonNotPossible, "Inject",
				"PersistentPodState %s: %s", o.Name, why)
		}
		if p.Pod.stage != ready {
			continue
		}
		if labels, exists := nodes(p.Pod.Node); exists {
			if keys := missing(o, labels); len(keys) > 0 {
				node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: p.Pod.Node}}
				r.tell(o, node, reasonNotPossible, fmt.Sprintf("node %s has no label %s: pods that ran there are not bound by it",
					p.Pod.Node, strings.Join(keys, ", ")))
			}
		}
	}
}

// tell says something on an object, once. Events that differ in their text alone are taken for one, so each is related to
// something else.
func (r *recorder) tell(o *pps.PersistentPodState, related runtime.Object, reason, text string) {
	if r.said.first(string(o.UID) + text) {
		ref := o.DeepCopy()
		ref.SetGroupVersionKind(pps.GroupVersion.WithKind("PersistentPodState"))
		r.events.Eventf(ref, related, corev1.EventTypeWarning, reason, "Record", "%s", text)
	}
}

// letGo deletes pods that wait for the hostname of a node that is gone: their affinity cannot be relaxed (FACTS 8.9), and
// what replaces them is not bound to it any more (FIELD, P1). It answers when to look again.
func (r *recorder) letGo(ctx context.Context, o *pps.PersistentPodState, pods map[string]Sight) (later time.Duration, err error) {
	if !r.release {
		return 0, nil
	}
	names, later, err := r.stuck(ctx, o, pods, time.Now())
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		err = errors.Join(err, r.deletePod(ctx, o.Namespace, name, pods[name].Pod))
	}
	return later, err
}

// stuck are the pods that wait in vain. A pod is judged by itself, for what it waits for may never have been recorded: an
// object has injected the hostname, and no node has it. One that is younger than the grace has to wait as well, so that
// nothing can have it deleted again and again, and all have to while this replica may not have seen their node leave; later
// is when the first of these is to be looked at again.
func (r *recorder) stuck(ctx context.Context, o *pps.PersistentPodState, pods map[string]Sight, now time.Time) (names []string, later time.Duration, err error) {
	looks := r.view.looksSince()
	for name, p := range pods {
		if !p.Alive() || p.Pod.Leaving || p.Pod.stage != waiting || p.Pod.Hostname == "" || p.Pod.Annotations[pps.AnnotationInjected] != o.Name {
			continue
		}
		switch there, err := r.view.Hosts(ctx, p.Pod.Hostname); {
		case err != nil:
			return nil, 0, err
		case there:
			continue
		}
		since := p.Pod.Created
		if since.Before(looks) {
			since = looks
		}
		if wait := since.Add(r.grace).Sub(now); wait <= 0 {
			names = append(names, name)
		} else if later == 0 || wait < later {
			later = wait
		}
	}
	return names, later, nil
}

// deletePod releases one pod, if it is still as it was seen.
func (r *recorder) deletePod(ctx context.Context, namespace, name string, seen *Seen) error {
	pod := podRef(namespace, name, seen.UID)
	err := r.client.Delete(ctx, pod, client.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion})
	if err == nil {
		r.log.Info("released a pod that waited for a node that is gone", "pod", namespace+"/"+name, "hostname", seen.Hostname)
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, reasonReleased, "Release",
			"it waited for %s, which is gone; its successor may run elsewhere", seen.Hostname)
	}
	if ignoreLost(err) != nil {
		return fmt.Errorf("releasing pod %s/%s: %w", namespace, name, err)
	}
	return nil
}

func podRef(namespace, name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid}}
}

func (r *recorder) setup(mgr manager.Manager) error {
	c, err := controller.NewTyped("persistentpodstate", mgr, controller.TypedOptions[types.NamespacedName]{Reconciler: r})
	if err != nil {
		return err
	}
	return c.Watch(r.view.states.source(r.view.allStates))
}

// once remembers what has been said. When that has become a lot it forgets all, and something may be said again.
type once struct {
	mu   sync.Mutex
	said map[string]bool
}

func (o *once) first(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.said == nil || len(o.said) > 10_000 {
		o.said = map[string]bool{}
	}
	first := !o.said[text]
	o.said[text] = true
	return first
}
