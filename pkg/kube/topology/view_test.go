package topology

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

var statefulSet = schema.GroupKind{Group: "apps", Kind: "StatefulSet"}

// has gives a view the workloads of a kind.
func (v *View) has(kind schema.GroupKind, synced bool, workloads ...*Workload) *View {
	informer := toolscache.NewSharedIndexInformer(nil, &unstructured.Unstructured{}, 0, toolscache.Indexers{})
	for _, w := range workloads {
		informer.GetStore().Add(&workloadView{metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name}, w})
	}
	v.workloads[kind] = &watched{SharedIndexInformer: informer, told: told{synced: synced}}
	return v
}

// admit has a view's binder look at a new pod.
func (v *View) admit(t *testing.T, pod *corev1.Pod) corev1.Pod {
	t.Helper()
	req := creation(t, pod)
	return patched[corev1.Pod](t, req, (&binder{view: v, release: true, grace: time.Minute, log: logr.Discard()}).handler().Handle(t.Context(), req))
}

// What has been scaled away is forgotten by the memory of pods as well as by the record.
func TestWhatIsScaledAwayIsForgotten(t *testing.T) {
	three, one := db(), db(with(int64(1), "spec", "replicas"))
	for _, tt := range []struct {
		story  string
		object *pps.PersistentPodState
		events func(v *View, pod *glance)
		bound  bool
	}{
		{"deleted", state(requires(hostname)), func(v *View, pod *glance) {
			v.see(pod, nil)
		}, true},
		{"scaled down, then gone", state(requires(hostname)), func(v *View, pod *glance) {
			v.has(statefulSet, true, one).workloadMoved(one)
			v.see(pod, nil)
			v.has(statefulSet, true, three).workloadMoved(three)
		}, false},
		{"gone, then scaled down as far as this replica has heard", state(requires(hostname)), func(v *View, pod *glance) {
			v.see(pod, nil)
			v.has(statefulSet, true, one).workloadMoved(one)
			v.has(statefulSet, true, three).workloadMoved(three)
		}, false},
		{"scaled down and up again while it is on its way out", state(requires(hostname)), func(v *View, pod *glance) {
			v.has(statefulSet, true, one).workloadMoved(one)
			v.has(statefulSet, true, three).workloadMoved(three)
			v.see(pod, nil)
		}, true},
		{"scaled down, WhenDeleted", state(requires(hostname), until(pps.WhenDeleted)), func(v *View, pod *glance) {
			v.has(statefulSet, true, one).workloadMoved(one)
			v.see(pod, nil)
		}, true},
		{"nobody knows how many there should be", state(requires(hostname)), func(v *View, pod *glance) {
			v.has(statefulSet, false, one)
			v.see(pod, nil)
		}, true},
	} {
		v := viewOf(tt.object).has(statefulSet, true, three)
		pod := glanceAt(aPod("db-2", readyOn("node1")), builtIn)
		v.see(nil, pod)
		tt.events(v, pod)
		if got := v.admit(t, aPod("db-2")); (got.Spec.NodeSelector[hostname] == "node1") != tt.bound || (got.Annotations[pps.AnnotationInjected] != "") != tt.bound {
			t.Errorf("%s: bound to %v, %v", tt.story, got.Spec.NodeSelector, got.Annotations)
		}
	}
}

// P1: pods that wait for a node that is gone are told from pods that wait for something else.
func TestStuckPods(t *testing.T) {
	o := state(requires(hostname, zone))
	bound := func(v *View, pod *corev1.Pod) *corev1.Pod { p := v.admit(t, pod); p.UID = pod.UID; return &p }
	another := func(p *corev1.Pod) *corev1.Pod { annotate(p, pps.AnnotationInjected, "web"); return p }
	selects := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{hostname: "node1"} }
	remembers := func(objects ...*pps.PersistentPodState) *View {
		v := viewOf(objects...).has(statefulSet, true, db())
		v.see(nil, glanceAt(aPod("db-0", startedOn("node1")), builtIn))
		return v
	}
	for _, tt := range []struct {
		story string
		pod   *corev1.Pod
		nodes cluster
		age   time.Duration
		looks time.Duration // since when this replica does
		want  bool
		later time.Duration
	}{
		{"bound from its record", bound(viewOf(state(requires(hostname), recorded("db-0", "node1"))), aPod("db-0")), nil, time.Hour, 2 * time.Hour, true, 0},
		{"bound from memory, never recorded", bound(remembers(o), aPod("db-0")), nil, time.Hour, 2 * time.Hour, true, 0},
		{"its node is there", bound(remembers(o), aPod("db-0")), three(), time.Hour, 2 * time.Hour, false, 0},
		{"its user chose the hostname, the zone is injected", bound(remembers(o), aPod("db-0", selects)), nil, time.Hour, 2 * time.Hour, false, 0},
		{"its user chose the hostname, by a copied manifest", bound(remembers(o), aPod("db-0", selects, annotated("leasehold.dev/topology-required", "a=b"))),
			nil, time.Hour, 2 * time.Hour, false, 0},
		{"it has a node", bound(remembers(o), aPod("db-0", assignedTo("node1"))), nil, time.Hour, 2 * time.Hour, false, 0},
		{"another object bound it", another(bound(remembers(o), aPod("db-0"))), nil, time.Hour, 2 * time.Hour, false, 0},
		{"it is young", bound(remembers(o), aPod("db-0")), nil, 50 * time.Second, time.Hour, false, 10 * time.Second},
		{"this replica has just begun, and may not have seen its node leave", bound(remembers(o), aPod("db-0")), nil, time.Hour, 20 * time.Second, false, 40 * time.Second},
		{"it is on its way out already", bound(remembers(o), aPod("db-0", leaving)), nil, time.Hour, 2 * time.Hour, false, 0},
	} {
		v := remembers(o)
		v.nodes = tt.nodes
		r := &recorder{view: v, release: true, grace: time.Minute}
		now := tt.pod.CreationTimestamp.Add(tt.age)
		v.began = now.Add(-tt.looks)
		names, later, err := r.stuck(t.Context(), o, seen(tt.pod).Of(targetOf(o)), now)
		if err != nil || slices.Equal(names, []string{"db-0"}) != tt.want || later != tt.later {
			t.Errorf("%s: %q, %v, %v; it waits for %v", tt.story, names, later, err, tt.pod.Spec.NodeSelector)
		}
	}
}

// A node that is made again before the grace is over was never gone.
func TestANodeThatHasJustLeftIsWaitedFor(t *testing.T) {
	v := viewOf(state(requires(hostname), recorded("db-0", "node1")))
	left := three()
	delete(left, "node1")
	v.nodes = left
	bound := func() bool { pod := v.admit(t, aPod("db-0")); return pod.Spec.NodeSelector[hostname] == "node1" }
	hosts := func() bool {
		yes, err := v.Hosts(t.Context(), "node1")
		if err != nil {
			t.Fatal(err)
		}
		return yes
	}
	v.began = time.Now()
	if !bound() {
		t.Error("a node that may have left before this replica began is not waited for")
	}
	v.began = time.Now().Add(-time.Hour)
	if bound() || hosts() {
		t.Error("a node that was never seen is waited for")
	}
	v.leavers.Went(three().all()[0], began)
	if !bound() || !hosts() {
		t.Error("it is not waited for")
	}
	if over := v.leavers.Over(began.Add(59 * time.Second)); len(over) > 0 || !bound() {
		t.Errorf("over too soon: %v", over)
	}
	if over := v.leavers.Over(began.Add(time.Minute)); len(over) != 1 || over[0].Name != "node1" || bound() || hosts() {
		t.Errorf("not over: %v", over)
	}
	v.leavers.Went(three().all()[0], began)
	v.leavers.Came("node1")
	if over := v.leavers.Over(began.Add(time.Hour)); len(over) > 0 {
		t.Errorf("it is back, and over: %v", over)
	}
}

func TestWhoWaitsForANodeIsFound(t *testing.T) {
	s := seen(aPod("db-0", func(p *corev1.Pod) {
		require(p, map[string]string{hostname: "node1"})
		annotate(p, "leasehold.dev/topology-required", hostname+"=node1")
	}))
	if got := s.Waiting("node1"); !slices.Equal(got, []Target{db().Target}) {
		t.Errorf("%v", got)
	}
	if got := s.Waiting("node2"); len(got) > 0 {
		t.Errorf("%v wait for another node", got)
	}
}

// lists is an API that has these objects, and never another.
func lists(objects ...runtime.Object) *toolscache.ListWatch {
	return &toolscache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			list := &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			return list, apimeta.SetList(list, objects)
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, apierrors.NewBadRequest("an API server that is older")
			}
			return watch.NewFake(), nil
		},
	}
}

// Who asks for what a handler makes of the first list must not be answered before the handler has made it.
func TestSyncedIsWhatHasBeenTold(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	w, err := run(t.Context(), corev1.SchemeGroupVersion.WithResource("pods"), lists(aPod("db-0")), &corev1.Pod{},
		func(o any) (any, error) { return o, nil }, nil, events[*corev1.Pod]{came: func(*corev1.Pod) { close(began); <-goOn }})
	if err != nil {
		t.Fatal(err)
	}
	<-began
	if !toolscache.WaitForCacheSync(t.Context().Done(), w.SharedIndexInformer.HasSynced) {
		t.Fatal("it is not listed")
	}
	if w.HasSynced() {
		t.Error("synced, and the handler has not returned")
	}
	close(goOn)
	if !toolscache.WaitForCacheSync(t.Context().Done(), w.HasSynced) {
		t.Error("never synced")
	}
}

// What is looked at while its kind is being listed, or is not there yet, is looked at again.
func TestWhatIsNotListedYetIsLookedAtAgain(t *testing.T) {
	serves := &stance{}
	serves.state.Store(serving)
	object := state()
	pods := &watched{told: told{synced: true}}
	for _, v := range []*View{viewOf(object), viewOf(object).has(statefulSet, false)} {
		v.pods = pods
		g, err := (&generator{view: v, stance: serves}).Reconcile(t.Context(), db().Target)
		if err != nil || g.RequeueAfter <= 0 {
			t.Errorf("the generator: %+v, %v", g, err)
		}
		r, err := (&recorder{view: v, stance: serves}).Reconcile(t.Context(), keys([]*pps.PersistentPodState{object})[0])
		if err != nil || r.RequeueAfter <= 0 {
			t.Errorf("the recorder: %+v, %v", r, err)
		}
	}
}

// slow is an API server that takes its time to say what it serves.
type slow struct {
	apimeta.RESTMapper
	asked, answer chan struct{}
}

func (s slow) RESTMapping(kind schema.GroupKind, _ ...string) (*apimeta.RESTMapping, error) {
	s.asked <- struct{}{}
	<-s.answer
	return nil, &apimeta.NoKindMatchError{GroupKind: kind}
}

func TestNobodyWaitsForDiscovery(t *testing.T) {
	v := viewOf(state(recorded("db-0", "node1")))
	api := slow{asked: make(chan struct{}), answer: make(chan struct{})}
	v.mapper = api
	done := make(chan error)
	go func() { done <- v.watchKinds() }()
	<-api.asked
	if pod := v.admit(t, aPod("db-0")); pod.Annotations[pps.AnnotationInjected] != "db" {
		t.Errorf("%v", pod.Annotations)
	}
	close(api.answer)
	for {
		select {
		case <-api.asked:
			continue
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		}
		break
	}
}

// A RESTMapper keeps the kinds of a CRD that is gone.
func TestAKindWhoseCRDIsGoneIsNotWatched(t *testing.T) {
	kind := builtIn[1]
	mapper := apimeta.NewDefaultRESTMapper(nil)
	mapper.Add(kind, apimeta.RESTScopeNamespace)
	api, err := dynamic.NewForConfig(&rest.Config{Host: "http://127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	v := viewOf()
	v.ctx, v.mapper, v.sources, v.crds = t.Context(), mapper, &sources{dynamic: api}, make(chan struct{}, 1)
	crd := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "statefulsets.apps.kruise.io"}}
	other := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "others.apps.kruise.io"}}
	for i, step := range []struct {
		event func()
		want  error
	}{
		{func() { v.crdCame(crd) }, errUnknown},
		{func() { v.crdWent(other) }, errUnknown},
		{func() { v.crdWent(crd) }, errNoKind},
		{func() { v.crdCame(crd) }, errUnknown},
	} {
		step.event()
		if err := v.watchKinds(); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Workload(Target{Kind: kind.GroupKind(), Namespace: "ns", Name: "db"}); !errors.Is(err, step.want) {
			t.Errorf("event %d: %v, want %v", i+1, err, step.want)
		}
	}
}

func TestReady(t *testing.T) {
	crds := func(synced bool, names ...string) *watched {
		informer := toolscache.NewSharedIndexInformer(nil, &metav1.PartialObjectMetadata{}, 0, toolscache.Indexers{})
		for _, name := range names {
			informer.GetStore().Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		return &watched{SharedIndexInformer: informer, told: told{synced: synced}}
	}
	none := func(v *View) *View { v.objects = nil; return v }
	for _, tt := range []struct {
		story string
		view  *View
		crds  *watched
		want  bool
	}{
		{"nothing is known of CRDs", viewOf(), nil, false},
		{"CRDs are being listed", viewOf(), crds(false), false},
		{"there is none", none(viewOf()), crds(true, "others.example.com"), true},
		{"there is one, its objects are not listed", none(viewOf()), crds(true, crdName), false},
		{"there is one, its objects are listed", viewOf(), crds(true, crdName), true},
	} {
		tt.view.crdList, tt.view.began = tt.crds, time.Now()
		err := tt.view.Ready(nil)
		if (err == nil) != tt.want {
			t.Errorf("%s: %v", tt.story, err)
		}
		if tt.want {
			tt.view.objects = nil // the CRD is made anew
			tt.view.crdList = crds(true, crdName)
			if err := tt.view.Ready(nil); err != nil {
				t.Errorf("%s, and later: %v", tt.story, err)
			}
		}
	}
	late := none(viewOf())
	late.crdList, late.began = crds(true, crdName), time.Now().Add(-time.Hour)
	if err := late.Ready(nil); err != nil {
		t.Errorf("one API that cannot be listed stops everything: %v", err)
	}
}

func TestAWorkloadThatDoesNotSayHowManyMayHaveAny(t *testing.T) {
	w := db(func(u *unstructured.Unstructured) { delete(u.Object["spec"].(map[string]any), "replicas") })
	o := state(recorded("db-7", "node1"))
	if got := Status(o, w, nil, three().nodes); !maps.Equal(places(got), map[string]string{"db-7": "node1"}) {
		t.Errorf("%v", places(got))
	}
}
