package persistentpodstate

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
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

// Objects without effect: one that is gone, is being deleted, has no target, or has an older one
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
		"a name that no workload has": {"db", []*pps.PersistentPodState{state(func(o *pps.PersistentPodState) {
			o.Spec.TargetRef.Name = strings.Repeat("x", kube.MaxName+1)
		})}, "PersistentPodState db: Warning InvalidPersistentPodState its target has no name that a workload may " +
			"have; it has no effect"},
		"the younger of two": {"second", []*pps.PersistentPodState{state(), second}, "PersistentPodState second: " +
			"Warning InvalidPersistentPodState older PersistentPodState db has the target StatefulSet.apps ns/db; " +
			"this one has no effect"},
	} {
		v := viewOf(c.objects...).has(statefulSet, true, db())
		v.runs(aPod("db-0", readyOn("node2")))
		r := newRig(v)
		result, err := r.reconcile(t, c.object)
		if err != nil || !result.IsZero() || len(r.writes.calls)+len(r.writes.recorded) > 0 ||
			strings.Join(r.events.texts, "; ") != c.event {
			t.Errorf("%s: %+v, %v, written %q, events %q", name, result, err, r.writes.calls, r.events.texts)
		}
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
	_, err := r.reconcile(t, "db")
	must.Succeed(t, err)
	if len(r.writes.patched) != 1 || len(r.writes.recorded) > 0 ||
		len(r.writes.patched[0].RequiredPersistentTopology.Keys) != 1 {
		t.Errorf("patched %+v, recorded %+v", r.writes.patched, r.writes.recorded)
	}
}

// An object of which only a part is used is not changed but for its status, which is written once.
// An Event says so.
func TestObjectOfWhichAPartIsUsed(t *testing.T) {
	o := state(requires(append([]string{zone}, manyNames...)...), prefers())
	o.Status.PodStates = map[string]pps.PodState{}
	for i := range maxStates + 10 {
		o.Status.PodStates[fmt.Sprint("db-", i)] = pps.PodState{NodeName: "node1"}
	}
	var events []string
	for i := range 2 {
		v := viewOf(o).has(statefulSet, true, db(with(int64(maxStates+20), "spec", "replicas")))
		for _, pod := range []string{"db-0", fmt.Sprint("db-", maxStates+5), fmt.Sprint("db-", maxStates+15)} {
			v.runs(aPod(pod, readyOn("node2")))
		}
		r := newRig(v)
		_, err := r.reconcile(t, "db")
		must.Succeed(t, err)
		events = append(events, r.events.texts...)
		if len(r.writes.patched) > 0 || len(r.writes.recorded) != 1-i {
			t.Fatalf("pass %d: %d changes, %d states written", i, len(r.writes.patched), len(r.writes.recorded))
		}
		if i == 0 {
			o.Status = r.writes.recorded[0]
			if n := len(o.Status.PodStates); n != maxStates || o.Status.PodStates["db-0"].NodeName != "node2" {
				t.Errorf("%d states are written, of db-0 %+v", n, o.Status.PodStates["db-0"])
			}
		}
	}
	check.Equal(t, events[0], "PersistentPodState db: Warning PersistentPodStateLarge "+onlyTheFirst)
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
		v.runs(pod)
	}
	r := newRig(v)
	for range 2 {
		r.report(o, v.pods.ByIndex(byTarget, targetOf(o).String()))
	}
	got := r.events.texts
	slices.Sort(got)
	want := []string{
		"Pod db-0: Warning PinNotPossible PersistentPodState db: no node has it",
		"PersistentPodState db, Node node3: Warning PinNotPossible node node3 has no label " +
			"topology.kubernetes.io/zone: pods that ran there are not restricted by it",
		"PersistentPodState db, Pod db-3: Warning PersistentPodStateLarge the annotations of pod db-3 that are to be " +
			"recorded are more than 64, or have more than 4096 bytes: none of them is",
	}
	slices.Sort(want)
	check.Slices(t, got, want, "reported")
}

// A workload whose annotations have no effect gets one Event about that.
func TestProblemIsReported(t *testing.T) {
	r := newRig(viewOf().has(statefulSet, true, db(with("true", "metadata", "annotations", pps.AnnotationGenerate))))
	for range 2 {
		_, err := r.reconcile(t, "db")
		must.Succeed(t, err)
	}
	if len(r.events.texts) != 1 || !strings.HasPrefix(r.events.texts[0],
		"StatefulSet db: Warning InvalidPersistentPodState kruise.io/auto-generate-persistent-pod-state is true, but") {
		t.Errorf("events %q", r.events.texts)
	}
}

// An object is reconciled again all the time while the API server does not serve the kind of its
// target, which costs little, however many states it has.
func TestTargetOfAKindThatIsNotServed(t *testing.T) {
	o := state()
	o.Status.PodStates = map[string]pps.PodState{}
	for i := range maxStates {
		o.Status.PodStates[fmt.Sprint("db-", i)] = pps.PodState{NodeName: fmt.Sprint("node", i%50)}
	}
	r := newRig(viewOf(o).has(statefulSet, false))
	const passes = 20
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	for range passes {
		if result, err := r.reconcile(t, "db"); err != nil || result.RequeueAfter != retryInterval {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	goruntime.ReadMemStats(&after)
	check.Between(t, (after.TotalAlloc-before.TotalAlloc)/passes, 0, 20<<10, "bytes each time")
}
