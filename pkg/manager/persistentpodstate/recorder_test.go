package persistentpodstate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// keepsPods is an API server that rejects every deletion of a pod.
type keepsPods struct {
	client.Client
	deletions map[string]bool
	recorded  []pps.PersistentPodStateStatus
	updated   []pps.PersistentPodStateSpec
}

func (k *keepsPods) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	k.updated = append(k.updated, o.(*pps.PersistentPodState).Spec)
	return nil
}

func (k *keepsPods) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	k.deletions[o.GetName()] = true
	return apierrors.NewForbidden(corev1.Resource("pods"), o.GetName(), nil)
}

func (k *keepsPods) Status() client.SubResourceWriter { return statusOf{k: k} }

type statusOf struct {
	client.SubResourceWriter
	k *keepsPods
}

func (s statusOf) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	s.k.recorded = append(s.k.recorded, o.(*pps.PersistentPodState).Status)
	return nil
}

// A pod that cannot be deleted does not stop the deletion of others, or the recording.
func TestFailedDeletionOfAStuckPod(t *testing.T) {
	o := state(requires(hostname), recorded("db-0", "node9", "db-1", "node9"))
	v := viewOf(o).has(statefulSet, true, db())
	v.pods = listed[*corev1.Pod, *podView](nil, nil)
	waits := func(p *corev1.Pod) {
		require(p, map[string]string{hostname: "node9"})
		annotate(p, "leasehold.dev/topology-required", hostname+"=node9")
		annotate(p, pps.AnnotationInjected, o.Name)
	}
	for _, pod := range []*corev1.Pod{aPod("db-0", waits), aPod("db-1", waits), aPod("db-2", readyOn("node2"))} {
		v.observe(nil, podViewOf(pod, builtIn, noKeys))
	}
	r := &role{}
	r.state.Store(serving)
	api := &keepsPods{deletions: map[string]bool{}}
	rec := &recorder{view: v, client: api, role: r, releaseGone: true, log: logr.Discard()}
	if _, err := rec.Reconcile(t.Context(), keys([]*pps.PersistentPodState{o})[0]); !apierrors.IsForbidden(err) {
		t.Errorf("unexpected error: %v", err)
	}
	if len(api.recorded) != 1 || api.recorded[0].PodStates["db-2"].NodeName != "node2" {
		t.Errorf("recorded %+v", api.recorded)
	}
	if !api.deletions["db-0"] || !api.deletions["db-1"] {
		t.Errorf("deletions: %v", api.deletions)
	}
}

// An object that is gone, or is being deleted, is left alone.
func TestRecorderWithoutAnObject(t *testing.T) {
	deleted := state(recorded("db-0", "node1"))
	deleted.DeletionTimestamp = &metav1.Time{Time: began}
	v := viewOf(deleted).has(statefulSet, true, db())
	v.pods = listed[*corev1.Pod, *podView](nil, nil)
	v.observe(nil, podViewOf(aPod("db-0", readyOn("node2")), builtIn, noKeys))
	r := &role{}
	r.state.Store(serving)
	api := &keepsPods{deletions: map[string]bool{}}
	rec := &recorder{view: v, client: api, role: r, log: logr.Discard()}
	for _, key := range []types.NamespacedName{keys([]*pps.PersistentPodState{deleted})[0],
		{Namespace: "db", Name: "gone"}} {
		if result, err := rec.Reconcile(t.Context(), key); err != nil || !result.IsZero() || len(api.recorded) > 0 {
			t.Errorf("%s: %+v, %v, recorded %+v", key, result, err, api.recorded)
		}
	}
}

// stored reads one object.
type stored struct{ o *pps.PersistentPodState }

func (s stored) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("the manager may not get PersistentPodStates")
}

func (s stored) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*pps.PersistentPodStateList).Items = []pps.PersistentPodState{*s.o}
	return nil
}

// An object that was written while no webhook normalized it is normalized before anything is
// recorded.
func TestRecorderNormalizes(t *testing.T) {
	o := state(func(o *pps.PersistentPodState) {
		o.Spec.RequiredPersistentTopology = &pps.NodeTopologyTerm{Keys: []string{zone, zone}}
	})
	v := viewOf(o).has(statefulSet, true, db())
	v.pods = listed[*corev1.Pod, *podView](nil, nil)
	r := &role{}
	r.state.Store(serving)
	r.ownsCRD.Store(true)
	api := &keepsPods{}
	rec := &recorder{view: v, client: api, live: stored{o}, role: r, log: logr.Discard()}
	if _, err := rec.Reconcile(t.Context(), keys([]*pps.PersistentPodState{o})[0]); err != nil {
		t.Fatal(err)
	}
	if len(api.updated) != 1 || len(api.recorded) > 0 || len(api.updated[0].RequiredPersistentTopology.Keys) != 1 {
		t.Errorf("updated %+v, recorded %+v", api.updated, api.recorded)
	}
}

// What was not injected is reported of pods that exist.
func TestRecorderReports(t *testing.T) {
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
	events := &eventTexts{}
	rec := &recorder{view: v, events: events}
	rec.report(o, v.history.Pods(targetOf(o)), three().nodes)
	got := events.texts
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
	return o.GetObjectKind().GroupVersionKind().Kind + " " + o.(client.Object).GetName()
}

// TestUnfitObject has an object that no webhook has validated.
func TestUnfitObject(t *testing.T) {
	o := objectOf(unstructuredOf(t, state(keeps(manyNames...))))
	r := &role{}
	r.state.Store(serving)
	events := &eventTexts{}
	rec := &recorder{view: viewOf(o), role: r, events: events, log: logr.Discard()}
	result, err := rec.Reconcile(t.Context(), keys([]*pps.PersistentPodState{o})[0])
	want := []string{"PersistentPodState db: Warning InvalidPersistentPodState its fields have other types than " +
		"leasehold's, or it names more than 64 labels and annotations with 4096 bytes; it has no effect"}
	if err != nil || !result.IsZero() || !slices.Equal(events.texts, want) {
		t.Errorf("%+v, %v, events %q, want %q", result, err, events.texts, want)
	}
}

// Users learn that an object grows too large before the API server stops to store it.
func TestLargeStatus(t *testing.T) {
	api, events := &keepsPods{}, &reasons{}
	rec := &recorder{client: api, events: events, log: logr.Discard()}
	o := state()
	grown := func(size int) pps.PersistentPodStateStatus {
		return pps.PersistentPodStateStatus{PodStates: map[string]pps.PodState{
			"db-0": {NodeName: "node1", Annotations: map[string]string{"a": strings.Repeat("x", size)}}}}
	}
	for i, size := range []int{largeObject / 2, largeObject, 5 * largeObject / 4} {
		if err := rec.record(t.Context(), o, grown(size)); err != nil || len(api.recorded) != i+1 {
			t.Errorf("%d bytes: recorded %d times, %v", size, len(api.recorded), err)
		}
	}
	if want := []string{"PersistentPodStateLarge"}; !slices.Equal(events.all, want) {
		t.Errorf("events %q, want %q", events.all, want)
	}
}
