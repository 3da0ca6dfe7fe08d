package persistentpodstate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// writes is an API server that records what the reconciler writes, and answers with an error.
type writes struct {
	client.Client
	calls    []string // such as "create db"
	recorded []pps.PersistentPodStateStatus
	patched  []pps.PersistentPodStateSpec
	err      error
}

func (w *writes) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	w.calls = append(w.calls, "create "+o.GetName())
	return w.err
}

func (w *writes) Patch(_ context.Context, o client.Object, p client.Patch, _ ...client.PatchOption) error {
	w.calls = append(w.calls, "patch "+o.GetName())
	w.patched = append(w.patched, o.(*pps.PersistentPodState).Spec)
	if data, err := p.Data(o); err != nil || !strings.Contains(string(data), `"resourceVersion"`) {
		return fmt.Errorf("a patch without the version: %s, %w", data, err)
	}
	return w.err
}

func (w *writes) Delete(_ context.Context, o client.Object, options ...client.DeleteOption) error {
	w.calls = append(w.calls, "delete "+o.GetName())
	if p, ok := options[0].(client.Preconditions); !ok || p.UID == nil || p.ResourceVersion == nil {
		return errors.New("a deletion without preconditions")
	}
	return w.err
}

func (w *writes) Status() client.SubResourceWriter { return statusOf{w: w} }

type statusOf struct {
	client.SubResourceWriter
	w *writes
}

func (s statusOf) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	s.w.recorded = append(s.w.recorded, o.(*pps.PersistentPodState).Status)
	return nil
}

// eventTexts records Events with the objects that they are about.
type eventTexts struct {
	ctrlrecorder.EventRecorder
	texts []string
}

func (e *eventTexts) Eventf(regarding, related runtime.Object, kind, reason, _, format string, args ...any) {
	about := nameOf(regarding)
	if related != nil {
		about += ", " + nameOf(related)
	}
	e.texts = append(e.texts, about+": "+kind+" "+reason+" "+fmt.Sprintf(format, args...))
}

func nameOf(o runtime.Object) string {
	if ref, ok := o.(*corev1.ObjectReference); ok {
		return ref.Kind + " " + ref.Name
	}
	return o.GetObjectKind().GroupVersionKind().Kind + " " + o.(client.Object).GetName()
}

// rig is a reconciler with what it writes.
type rig struct {
	*reconciler
	writes *writes
	events *eventTexts
}

func newRig(v *clusterView) rig {
	w, e := &writes{}, &eventTexts{}
	return rig{&reconciler{view: v, client: w, role: serves(), events: e, log: logr.Discard()}, w, e}
}

func (r rig) reconcile(t *testing.T, name string) (reconcile.Result, error) {
	return r.Reconcile(t.Context(), control.RequestFor("ns/"+name))
}

// Reconciling is repeated while leasehold does not serve PersistentPodStates, or does not know
// something.
func TestReconcileIsRepeated(t *testing.T) {
	object := state(recorded("db-0", "node1"))
	noNodes := viewOf(object).has(statefulSet, true, db())
	noNodes.nodesSynced = func() bool { return false }
	noPods := newView(&Feature{kinds: builtIn}).in(three())
	list(noPods.objects, object)
	for name, c := range map[string]struct {
		v     *clusterView
		state int32
		want  time.Duration
	}{
		"a kind that is not served": {viewOf(object), serving, retryInterval},
		"no nodes":                  {noNodes, serving, retryInterval},
		"no pods":                   {noPods.has(statefulSet, true, db()), serving, retryInterval},
		"undecided":                 {viewOf(object).has(statefulSet, true, db()), undecided, retryInterval},
		"Kruise serves them":        {viewOf(object).has(statefulSet, true, db()), standby, pollInterval},
	} {
		r := newRig(c.v)
		r.role.state.Store(c.state)
		if result, err := r.reconcile(t, "db"); err != nil || result.RequeueAfter != c.want ||
			len(r.writes.calls)+len(r.writes.recorded) > 0 {
			t.Errorf("%s: %+v, %v, written: %q", name, result, err, r.writes.calls)
		}
	}
}

// Objects without effect: one that is gone, is being deleted, is too large, or has an older one
// beside it.
func TestObjectsWithoutEffect(t *testing.T) {
	leaving := state(recorded("db-0", "node1"))
	leaving.DeletionTimestamp = &metav1.Time{Time: began}
	second := state(func(o *pps.PersistentPodState) { o.Name, o.CreationTimestamp = "second", metav1.NewTime(began) })
	for name, c := range map[string]struct {
		object  string
		objects []*pps.PersistentPodState
		event   string
	}{
		"gone":          {"gone", nil, ""},
		"being deleted": {"db", []*pps.PersistentPodState{leaving}, ""},
		"too large": {"db", []*pps.PersistentPodState{state(keeps(manyNames...))}, "PersistentPodState db: Warning " +
			"InvalidPersistentPodState it names more than 64 labels and annotations with 4096 bytes; it has no effect"},
		"the younger of two": {"second", []*pps.PersistentPodState{state(), second}, "PersistentPodState second: " +
			"Warning InvalidPersistentPodState older PersistentPodState db has the target StatefulSet.apps ns/db; " +
			"this one has no effect"},
	} {
		v := viewOf(c.objects...).has(statefulSet, true, db())
		v.observe(nil, podViewOf(aPod("db-0", readyOn("node2")), builtIn, noKeys))
		r := newRig(v)
		result, err := r.reconcile(t, c.object)
		if err != nil || !result.IsZero() || len(r.writes.calls)+len(r.writes.recorded) > 0 ||
			strings.Join(r.events.texts, "; ") != c.event {
			t.Errorf("%s: %+v, %v, written %q, events %q", name, result, err, r.writes.calls, r.events.texts)
		}
	}
}

// A pod that cannot be deleted does not stop the deletion of others, or the recording.
func TestFailedDeletionOfAStuckPod(t *testing.T) {
	o := state(requires(hostname), recorded("db-0", "node9", "db-1", "node9"))
	v := viewOf(o).has(statefulSet, true, db())
	waits := func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{hostname: "node9"}
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, "leasehold.dev/topology-required", hostname+"=node9")
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, pps.AnnotationInjected, o.Name)
	}
	for _, pod := range []*corev1.Pod{aPod("db-0", waits), aPod("db-1", waits), aPod("db-2", readyOn("node2"))} {
		pod.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
		v.observe(nil, podViewOf(pod, builtIn, noKeys))
	}
	r := newRig(v)
	r.writes.err = apierrors.NewForbidden(corev1.Resource("pods"), "db-0", nil)
	if _, err := r.reconcile(t, "db"); !apierrors.IsForbidden(err) {
		t.Errorf("unexpected error: %v", err)
	}
	if len(r.writes.recorded) != 1 || r.writes.recorded[0].PodStates["db-2"].NodeName != "node2" {
		t.Errorf("recorded %+v", r.writes.recorded)
	}
	if slices.Sort(r.writes.calls); !slices.Equal(r.writes.calls, []string{"delete db-0", "delete db-1"}) {
		t.Errorf("calls: %q", r.writes.calls)
	}
	v.keepGone = true
	kept := newRig(v)
	if _, err := kept.reconcile(t, "db"); err != nil || len(kept.writes.calls) > 0 {
		t.Errorf("with --pps-keep-gone: %v, %q", err, kept.writes.calls)
	}
}

// An object that was written while no webhook normalized it is normalized before anything is
// recorded.
func TestObjectIsNormalized(t *testing.T) {
	o := state(func(o *pps.PersistentPodState) {
		o.ResourceVersion = "7"
		o.Spec.RequiredPersistentTopology = &pps.NodeTopologyTerm{Keys: []string{zone, zone}}
	})
	r := newRig(viewOf(o).has(statefulSet, true, db()))
	if _, err := r.reconcile(t, "db"); err != nil {
		t.Fatal(err)
	}
	if len(r.writes.patched) != 1 || len(r.writes.recorded) > 0 ||
		len(r.writes.patched[0].RequiredPersistentTopology.Keys) != 1 {
		t.Errorf("patched %+v, recorded %+v", r.writes.patched, r.writes.recorded)
	}
}

// What was not injected is reported of pods that exist.
func TestReports(t *testing.T) {
	o := state(requires(zone), keeps("a"))
	v := viewOf(o)
	for _, pod := range []*corev1.Pod{
		aPod("db-0", annotated(annotationReason, "no node has it"), func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.Now()
		}),
		aPod("db-1", readyOn("node3")), // which has no zone
		aPod("db-3", annotated("a", strings.Repeat("x", maxRecorded))),
	} {
		v.observe(nil, podViewOf(pod, builtIn, v.recordedKeys))
	}
	gone := podViewOf(aPod("db-2", readyOn("node3")), builtIn, noKeys)
	v.observe(nil, gone)
	v.observe(gone, nil)
	r := newRig(v)
	for range 2 {
		r.report(o, v.history.Pods(targetOf(o)))
	}
	got := r.events.texts
	slices.Sort(got)
	want := []string{
		"Pod db-0: Warning PinNotPossible PersistentPodState db: no node has it",
		"PersistentPodState db, Node node3: Warning PinNotPossible node node3 has no label " +
			"topology.kubernetes.io/zone: pods that ran there are not restricted by it",
		"PersistentPodState db, Pod db-3: Warning PersistentPodStateLarge the annotations of pod db-3 that are to be " +
			"recorded have more than 4096 bytes: none of them is",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("reported %q, want %q", got, want)
	}
}

// Users learn that an object grows too large before the API server stops to store it.
func TestLargeStatus(t *testing.T) {
	r := newRig(viewOf())
	for i, size := range []int{largeObject / 2, largeObject, 5 * largeObject / 4} {
		err := r.record(t.Context(), state(), pps.PersistentPodStateStatus{PodStates: map[string]pps.PodState{
			"db-0": {NodeName: "node1", Annotations: map[string]string{"a": strings.Repeat("x", size)}}}})
		if err != nil || len(r.writes.recorded) != i+1 {
			t.Errorf("%d bytes: recorded %d times, %v", size, len(r.writes.recorded), err)
		}
	}
	if len(r.events.texts) != 1 || !strings.Contains(r.events.texts[0], "PersistentPodStateLarge") {
		t.Errorf("events %q", r.events.texts)
	}
}

// The errors of writes are returned, but not those that another event makes good.
func TestGenerateReturnsErrors(t *testing.T) {
	asks := db(with("true", "metadata", "annotations", pps.AnnotationGenerate),
		with(zone, "metadata", "annotations", pps.AnnotationRequiredTopology))
	made := func(o *pps.PersistentPodState) {
		o.Labels, o.ResourceVersion, o.UID = map[string]string{labelGenerated: generatedValue}, "7", "object-1"
	}
	resource := pps.GroupVersion.WithResource("persistentpodstates").GroupResource()
	conflict, exists := apierrors.NewConflict(resource, "db", nil), apierrors.NewAlreadyExists(resource, "db")
	failure := apierrors.NewInternalError(errors.New("no"))
	for call, c := range map[string]struct {
		v       *clusterView
		ignored []error
	}{
		"create db": {viewOf().has(statefulSet, true, asks), []error{nil, exists, conflict}},
		"patch db":  {viewOf(state(made)).has(statefulSet, true, asks), []error{nil, conflict}},
		"delete db": {viewOf(state(made)).has(statefulSet, true, db()), []error{nil, conflict}},
	} {
		for _, answer := range append(c.ignored, failure) {
			r := newRig(c.v)
			r.writes.err = answer
			_, err := r.reconcile(t, "db")
			if want := answer == failure; errors.Is(err, failure) != want || !want && err != nil ||
				!slices.Equal(r.writes.calls, []string{call}) {
				t.Errorf("%s, %v: %v, written %q", call, answer, err, r.writes.calls)
			}
		}
	}
}

// A workload whose annotations have no effect gets one Event about that.
func TestProblemIsReported(t *testing.T) {
	r := newRig(viewOf().has(statefulSet, true, db(with("true", "metadata", "annotations", pps.AnnotationGenerate))))
	for range 2 {
		if _, err := r.reconcile(t, "db"); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.events.texts) != 1 || !strings.HasPrefix(r.events.texts[0],
		"StatefulSet db: Warning InvalidPersistentPodState kruise.io/auto-generate-persistent-pod-state is true, but") {
		t.Errorf("events %q", r.events.texts)
	}
}

// Each event enqueues the objects and workloads that depend on it.
func TestEventsEnqueue(t *testing.T) {
	named := func(name, target string) *pps.PersistentPodState {
		return state(func(o *pps.PersistentPodState) { o.Name, o.Spec.TargetRef.Name = name, target })
	}
	pod := aPod("db-0")
	moved := pod.DeepCopy()
	moved.OwnerReferences[0].Name, moved.ResourceVersion = "other", "2"
	for name, c := range map[string]struct {
		event func(v *clusterView) error
		want  string
	}{
		"an object is added": {func(v *clusterView) error { return v.objects.Add(named("db", "db")) }, "db second"},
		"an object is deleted": {func(v *clusterView) error { return v.objects.Delete(named("second", "db")) },
			"db second"},
		"a workload is changed": {func(v *clusterView) error { return v.workloads[statefulSet].Update(object(db())) },
			"db second"},
		"a workload is deleted": {func(v *clusterView) error { return v.workloads[statefulSet].Delete(object(db())) },
			"db second"},
		"a pod is added": {func(v *clusterView) error { return v.pods.Add(pod) }, "db second"},
		"a pod is deleted": {func(v *clusterView) error { return errors.Join(v.pods.Add(pod), v.pods.Delete(pod)) },
			"db second"},
		"a node has other labels": {func(v *clusterView) error {
			v.in(threeWithoutNode1(began))
			return nil
		}, "third"},
		"a pod has another owner": {func(v *clusterView) error {
			return errors.Join(v.pods.Add(pod), v.pods.Update(moved))
		}, "db other second third"},
	} {
		third := named("third", "other")
		recorded("db-0", "node1")(third)
		v := viewOf(third, named("second", "db"))
		list(v.workloads[statefulSet], object(db()))
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		v.follow(t.Context(), queue)
		drain(queue)
		if err := c.event(v); err != nil {
			t.Fatal(err)
		}
		if got := drain(queue); got != c.want {
			t.Errorf("%s: enqueued %s, want %s", name, got, c.want)
		}
		queue.ShutDown()
	}
}

// drain returns the names of the items in a queue.
func drain(queue workqueue.TypedRateLimitingInterface[reconcile.Request]) string {
	var names []string
	for queue.Len() > 0 {
		item, _ := queue.Get()
		queue.Done(item)
		names = append(names, item.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
