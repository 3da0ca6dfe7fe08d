package persistentpodstate

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// What is remembered of pods that have ended says where their successors run.
func TestPodsThatHaveEnded(t *testing.T) {
	three, one := db(), db(with(int64(1), "spec", "replicas"))
	short, up := aPod("db-2", startedOn("node1")), aPod("db-2", readyOn("node2"))
	pending, assigned := aPod("db-2"), aPod("db-2", assignedTo("node2"))
	adopted := short.DeepCopy()
	adopted.OwnerReferences[0].Name = "other"
	for name, c := range map[string]struct {
		object *pps.PersistentPodState
		view   func(v *clusterView)
		want   string
	}{
		"before it was recorded":    {state(), func(v *clusterView) { v.runs(short).ends(short) }, "node1"},
		"its deletion is not shown": {state(), func(v *clusterView) { v.runs(short) }, "node1"},
		"after it had moved, before it was recorded": {state(recorded("db-2", "node2")),
			func(v *clusterView) { v.runs(short).ends(short) }, "node1"},
		"never scheduled": {state(), func(v *clusterView) { v.runs(pending).ends(pending) }, ""},
		"only scheduled":  {state(), func(v *clusterView) { v.runs(assigned).ends(assigned) }, "node2"},
		"only scheduled, an earlier one had run": {state(),
			func(v *clusterView) { v.runs(short).ends(short).runs(assigned).ends(assigned) }, "node1"},
		"only scheduled, another one is recorded": {state(recorded("db-2", "node1")),
			func(v *clusterView) { v.runs(assigned).ends(assigned) }, "node1"},
		"a later one has run": {state(), func(v *clusterView) { v.runs(short).ends(short).runs(up).ends(up) }, "node2"},
		"of another workload with the name": {state(recorded("db-2", "node2")), func(v *clusterView) {
			v.runs(aPod("db-2", readyOn("node1"), ownedBy("set-0")))
		}, "node2"},
		"another workload controls it now": {state(), func(v *clusterView) { v.runs(short, adopted).ends(adopted) },
			"node1"},
		"scaled down": {state(), func(v *clusterView) {
			v.runs(short).has(statefulSet, true, one).ends(short).has(statefulSet, true, three)
		}, ""},
		"scaled down after an earlier one had ended": {state(), func(v *clusterView) {
			v.runs(short).ends(short).runs(up).has(statefulSet, true, one).ends(up).has(statefulSet, true, three)
		}, ""},
		"scaled down and up while it terminates": {state(), func(v *clusterView) {
			v.runs(short).has(statefulSet, true, one).has(statefulSet, true, three).ends(short)
		}, "node1"},
		"scaled down, WhenDeleted": {state(until(pps.WhenDeleted)), func(v *clusterView) {
			v.runs(short).has(statefulSet, true, one).ends(short)
		}, "node1"},
		"the workload is not known": {state(), func(v *clusterView) {
			v.runs(short).has(statefulSet, false, one).ends(short)
		}, "node1"},
	} {
		requires(hostname)(c.object)
		v := viewOf(c.object).has(statefulSet, true, three)
		c.view(v)
		got := v.admit(t, aPod("db-2"))
		check.Equal(t, got.Spec.NodeSelector[hostname], c.want, name)
		check.Equal(t, got.Annotations[pps.AnnotationInjected] != "", c.want != "", name, got.Annotations)
	}
}

// Pods that wait for a node that is gone are distinguished from pods that wait for something else.
func TestStuckPods(t *testing.T) {
	o := state(requires(hostname, zone))
	bound := func(v *clusterView, pod *corev1.Pod) *corev1.Pod { p := v.admit(t, pod); p.UID = pod.UID; return &p }
	another := func(p *corev1.Pod) *corev1.Pod {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, pps.AnnotationInjected, "web")
		return p
	}
	selects := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{hostname: "node1"} }
	patient := func(patience string) *corev1.Pod { // created a minute after began
		return bound(viewOf(state(requires(hostname), recorded("db-0", "node1"))), aPod("db-0",
			annotated(annotationPatience, patience)))
	}
	remembers := func(objects ...*pps.PersistentPodState) *clusterView {
		v := viewOf(objects...).has(statefulSet, true, db())
		return v.runs(aPod("db-0", startedOn("node1")))
	}
	for _, tt := range []struct {
		name         string
		pod          *corev1.Pod
		nodes        cluster
		age          time.Duration
		watching     time.Duration // for how long this replica watches nodes
		want         bool
		requeueAfter time.Duration
	}{
		{"injected from the recorded state", bound(viewOf(state(requires(hostname), recorded("db-0", "node1"))),
			aPod("db-0")), nil, time.Hour, 2 * time.Hour, true, 0},
		{"injected from an observed pod, never recorded", bound(remembers(o), aPod("db-0")), nil, time.Hour,
			2 * time.Hour, true, 0},
		{"its node exists", bound(remembers(o), aPod("db-0")), three(), time.Hour, 2 * time.Hour, false, 0},
		{"hostname set by the user, zone injected", bound(remembers(o), aPod("db-0", selects)), nil, time.Hour,
			2 * time.Hour, false, 0},
		{"hostname set by the user in a copied manifest",
			bound(remembers(o), aPod("db-0", selects, annotated("leasehold.dev/topology-required", "a=b"))),
			nil, time.Hour, 2 * time.Hour, false, 0},
		{"scheduled", bound(remembers(o), aPod("db-0", assignedTo("node1"))), nil, time.Hour, 2 * time.Hour, false, 0},
		{"injected from another object", another(bound(remembers(o), aPod("db-0"))), nil, time.Hour, 2 * time.Hour,
			false, 0},
		{"too young", bound(remembers(o), aPod("db-0")), nil, 50 * time.Second, time.Hour, false,
			10*time.Second + patienceMargin},
		{"this replica has just started", bound(remembers(o), aPod("db-0")), nil, time.Hour, 20 * time.Second, false,
			40*time.Second + patienceMargin},
		{"its node is not ready", patient(""), threeWithoutNode1(began), time.Hour, 2 * time.Hour, false, 0},
		{"its node is not ready, and the pod waits forever", patient("forever"), threeWithoutNode1(began),
			time.Hour, 2 * time.Hour, false, 0},
		{"its node is ready, and the pod has little patience", patient("1m"), three(), time.Hour,
			2 * time.Hour, false, 0},
		{"its node has not been ready for longer than its patience", patient("10m"),
			threeWithoutNode1(began), 10*time.Minute + patienceMargin, 2 * time.Hour, true, 0},
		{"it has waited for less than its patience", patient("10m"), threeWithoutNode1(began),
			7 * time.Minute, 2 * time.Hour, false, 3*time.Minute + patienceMargin},
		{"its node has not been ready for less than its patience", patient("10m"),
			threeWithoutNode1(began.Add(5 * time.Minute)), 11 * time.Minute, 2 * time.Hour, false,
			3*time.Minute + patienceMargin},
		{"terminating", bound(remembers(o), aPod("db-0", leaving)), nil, time.Hour, 2 * time.Hour, false, 0},
	} {
		v := remembers(o)
		v.in(tt.nodes)
		r := &reconciler{view: v}
		now := tt.pod.CreationTimestamp.Add(tt.age)
		v.startedAt = now.Add(-tt.watching)
		p := workloadPodOf(tt.pod, kube.StatefulSets, noKeys)
		due := r.due(p)
		isStuck := isWaitingFor(o, p) && !due.IsZero()
		left := max(0, due.Sub(now))
		if (isStuck && left == 0) != tt.want || isStuck && left != tt.requeueAfter ||
			!isStuck && tt.requeueAfter > 0 {
			t.Errorf("%s: waits %t, due in %v; node selector %v", tt.name, isStuck, left, tt.pod.Spec.NodeSelector)
		}
	}
}

// A new pod does not require the hostname of a node that has not been ready for longer than the
// pod's patience.
func TestPatienceWithANodeThatIsNotReady(t *testing.T) {
	for _, tt := range []struct {
		patience string
		since    time.Duration
		want     bool
	}{
		{"", 24 * time.Hour, true},
		{"ten minutes", 24 * time.Hour, true},
		{"forever", 24 * time.Hour, true},
		{"10m", time.Minute, true},
		{"10m", 11 * time.Minute, false},
	} {
		v := viewOf(state(requires(hostname, zone), recorded("db-0", "node1")))
		v.in(threeWithoutNode1(time.Now().Add(-tt.since)))
		pod := v.admit(t, aPod("db-0", annotated(annotationPatience, tt.patience)))
		if _, requires := pod.Spec.NodeSelector[hostname]; requires != tt.want || pod.Spec.NodeSelector[zone] != "a" {
			t.Errorf("patience %q, not ready for %s: %v", tt.patience, tt.since, pod.Spec.NodeSelector)
		}
		reason := pod.Annotations[annotationReason]
		if strings.Contains(reason, "not been ready") == tt.want {
			t.Errorf("patience %q, not ready for %s: reason %q", tt.patience, tt.since, reason)
		}
		const invalid = `annotation leasehold.dev/topology-patience: "ten minutes" is not a patience; want a duration`
		check.Equal(t, strings.HasPrefix(reason, invalid), tt.patience == "ten minutes", tt.patience, reason)
	}
}

// A node that is registered again within the grace period counts as present all the time.
func TestNodeThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := viewOf(state(requires(hostname), recorded("db-0", "node1")))
		is := func(when string, waits bool) {
			t.Helper()
			pod := v.admit(t, aPod("db-0"))
			check.Equal(t, pod.Spec.NodeSelector[hostname] == "node1", waits, when, "waited for")
		}
		all := three().all()
		list(v.nodes, all[1:]...)
		is("it has left", true)
		time.Sleep(v.goneGrace - time.Second)
		list(v.nodes, all...)
		list(v.nodes, all[1:]...)
		time.Sleep(v.goneGrace - time.Second)
		is("it has left, was added and has left again", true)
		check.Equal(t, len(v.present()), 3, "present nodes")
		time.Sleep(2 * time.Second)
		is("it has left for longer than the grace period", false)
		list(v.nodes, all...)
		is("it was added again", true)
		v.in(cluster{})
		is("it was never observed", false)
		v.startedAt = time.Now()
		is("it may have been removed before this replica started", true)
	})
}

// A watchedAPI is the API server of a manager. It has no objects, and lacks some resources.
type watchedAPI struct {
	manager.Manager
	run       manager.Runnable
	mu        sync.Mutex     // held while the fields below are used
	requests  map[string]int // by resource
	notServed []string
}

func (a *watchedAPI) GetConfig() *rest.Config                      { return &rest.Config{Host: "http://api", QPS: -1} }
func (a *watchedAPI) GetHTTPClient() *http.Client                  { return &http.Client{Transport: a} }
func (a *watchedAPI) AddReadyzCheck(string, healthz.Checker) error { return nil }
func (a *watchedAPI) Add(r manager.Runnable) error                 { a.run = r; return nil }

func (a *watchedAPI) GetRESTMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, kind := range append(slices.Clone(kube.StatefulSets), objectKind) {
		m.Add(kind, meta.RESTScopeNamespace)
	}
	return m
}

// RoundTrip serves a request. Watches show nothing until they are canceled.
func (a *watchedAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := path.Base(r.URL.Path)
	a.requests[resource]++
	code, body := http.StatusOK, io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"1"},"items":[]}`))
	switch query := r.URL.Query(); {
	case slices.Contains(a.notServed, resource):
		code = http.StatusNotFound
	case query.Get("sendInitialEvents") != "":
		code = http.StatusBadRequest
	case query.Get("watch") != "":
		shown, show := io.Pipe()
		context.AfterFunc(r.Context(), func() { show.Close() })
		body = shown
	}
	return &http.Response{StatusCode: code, Body: body, Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

// requested returns how many requests there were of a resource, and serves all from now on.
func (a *watchedAPI) requested(resource string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notServed = nil
	return a.requests[resource]
}

// What the API server does not serve is looked for at intervals, and pods are watched as soon as
// there is a PersistentPodState.
func TestWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &watchedAPI{requests: map[string]int{}, notServed: []string{"persistentpodstates"}}
		v := unsynced()
		must.Succeed(t, v.setup(api))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- api.run.Start(ctx) }()
		time.Sleep(2*pollInterval + time.Second)
		if n := api.requested("persistentpodstates"); n != 3 || v.objects.HasSynced() {
			t.Errorf("%d requests of what is not served, want 3; listed: %t", n, v.objects.HasSynced())
		}
		if !v.workloads[statefulSet].HasSynced() {
			t.Error("StatefulSets were not listed")
		}
		time.Sleep(pollInterval)
		if n := api.requested("pods"); n > 0 || !v.objects.HasSynced() {
			t.Errorf("%d requests of pods without PersistentPodStates, listed: %t", n, v.objects.HasSynced())
		}
		must.Succeed(t, v.objects.Update(state()))
		time.Sleep(time.Second)
		if !v.pods.HasSynced() {
			t.Error("pods were not listed")
		}
		stop()
		<-done
	})
}

// TestPodWithLongTexts has a user write as much into a pod as the API server accepts.
func TestPodWithLongTexts(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	v := viewOf(state(keeps("a", "b")))
	pod := aPod("db-0", readyOn("node1"))
	pod.Annotations = map[string]string{"a": "1", "b": long, annotationReason: long, pps.AnnotationInjected: long,
		annotationRequired: hostname + "=node1" + strings.Repeat(","+zone+"=a", 5000)}
	selected := "node1"
	pod.Spec.NodeSelector = map[string]string{hostname: selected}
	got := workloadPodOf(pod, kube.StatefulSets, v.recordedKeys)
	if h := got.Hostname; h != selected || unsafe.StringData(h) != unsafe.StringData(selected) {
		t.Errorf("the hostname is %q, or keeps the text of the annotation", h)
	}
	check.Between(t, len(fmt.Sprintf("%#v", *got)), 0, 4<<10, "bytes of the view")
	if _, found := got.Annotations["a"]; found || !got.TooLong {
		t.Error("a part of the annotations would be recorded")
	}
	pod.Annotations = map[string]string{}
	for i := range maxNames + 1 {
		pod.Annotations[fmt.Sprint("n", i)] = ""
	}
	if got := workloadPodOf(pod, kube.StatefulSets, v.recordedKeys); got.TooLong || len(got.Annotations) > 0 {
		t.Errorf("of many annotations %d are kept, of which none is to be recorded", len(got.Annotations))
	}
	pod.Annotations = map[string]string{"a": "1", "b": long[:maxRecorded-len("a1b")]}
	if got := workloadPodOf(pod, kube.StatefulSets, v.recordedKeys); got.TooLong || got.Annotations["a"] != "1" {
		t.Error("the longest annotations would not be recorded")
	}
	for name, owner := range map[string]metav1.OwnerReference{
		"name":    {APIVersion: "apps/v1", Name: long, UID: "set-1"},
		"UID":     {APIVersion: "apps/v1", Name: "db", UID: types.UID(long)},
		"version": {APIVersion: "apps/" + long, Name: "db", UID: "set-1"},
	} {
		owner.Kind, owner.Controller = "StatefulSet", new(true)
		pod.OwnerReferences[0] = owner
		got := workloadPodOf(pod, kube.StatefulSets, noKeys)
		check.Equal(t, got != nil, name == "version", "an owner's long", name, got)
		if got != nil && unsafe.StringData(got.target.Kind.Group) == unsafe.StringData(owner.APIVersion) {
			t.Error("the view keeps the text of the owner's version")
		}
	}
}

// TestObjectWithLongTexts has a user write as much into a PersistentPodState as the schema accepts.
func TestObjectWithLongTexts(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	o := state(recorded("db-0", "node1", "db-1", "node2"))
	o.UID, o.ResourceVersion, o.CreationTimestamp = "object-1", "7", metav1.NewTime(began)
	o.Labels, o.Annotations = map[string]string{"a": "b", labelGenerated: generatedValue}, map[string]string{"a": long}
	o.Finalizers = []string{long}
	o.Status.TargetUID = long
	of := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "set-1",
		Controller: new(true)}
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: long, Name: "a", UID: "b"}, of}
	s := o.Status.PodStates["db-1"]
	s.Annotations = map[string]string{"a": long}
	o.Status.PodStates["db-1"] = s
	got := storedOf(o).Object()
	want := state(recorded("db-0", "node1", "db-1", "node2"))
	want.UID, want.ResourceVersion, want.CreationTimestamp = o.UID, o.ResourceVersion, o.CreationTimestamp
	want.Status.TargetUID = ""
	want.Labels = map[string]string{labelGenerated: generatedValue}
	want.OwnerReferences = []metav1.OwnerReference{of}
	check.NoDiff(t, cmp.Diff(want, got))
	for name, change := range map[string]func(*pps.PersistentPodState){
		"labels":      requires(manyNames...),
		"preferences": prefers(pps.PreferredTopologyTerm{Weight: 1, Preference: pps.Term(manyNames...)}),
		"annotations": keeps(manyNames...),
	} {
		got := storedOf(state(change))
		spec := &got.Object().Spec
		if names := append(labelsOf(spec), annotationsOf(spec)...); !got.isCut || len(names) != maxNames {
			t.Errorf("too many %s: cut %t, %d names", name, got.isCut, len(names))
		}
	}
	for name, change := range map[string]func(*pps.PersistentPodState){
		"name":           func(o *pps.PersistentPodState) { o.Spec.TargetRef.Name = long },
		"kind":           func(o *pps.PersistentPodState) { o.Spec.TargetRef.Kind = long },
		"policy":         until(pps.RetentionPolicy(long)),
		"one long label": requires(long),
		"the other spelling of its labels": func(o *pps.PersistentPodState) {
			o.Spec.RequiredPersistentTopology.NodeTopologyKeys = slices.Repeat(manyNames, 8)
		},
		"the other spelling of a long label": func(o *pps.PersistentPodState) {
			o.Spec.RequiredPersistentTopology.NodeTopologyKeys = []string{long}
		},
		"preferences without labels": prefers(make([]pps.PreferredTopologyTerm, 10_000)...),
	} {
		got := storedOf(state(change))
		data, err := json.Marshal(got.object)
		if (got.object.Spec.TargetRef.Name == "") != (name == "name") || len(data) > 4<<10 || err != nil {
			t.Errorf("%s: the view has %d bytes, %v", name, len(data), err)
		}
	}
}

// Of the states of very many pods, those of the first ones are kept.
func TestManyStates(t *testing.T) {
	of := func(pods int, text string) *pps.PersistentPodState {
		o := state(requires(hostname, zone), prefers(), keeps("note"))
		o.Status.PodStates = map[string]pps.PodState{}
		for i := range pods {
			node := fmt.Sprint("ip-10-1-2-", i%400, ".eu-west-1.compute.internal")
			o.Status.PodStates[fmt.Sprint("db-", i)] = pps.PodState{NodeName: node,
				NodeTopologyLabels: map[string]string{hostname: node, zone: "eu-west-1a"},
				Annotations:        map[string]string{"note": text + fmt.Sprint(i)}}
		}
		return o
	}
	random := make([]byte, 3<<10)
	rand.NewChaCha8([32]byte{}).Read(random)
	noise := hex.EncodeToString(random)[:4000]
	for name, c := range map[string]struct {
		object *pps.PersistentPodState
		least  int
	}{
		"1,500 pods":       {of(1500, ""), 1500},
		"very many":        {of(20_000, ""), 1500},
		"long annotations": {of(2000, noise), 2},
	} {
		s := storedOf(c.object)
		got := s.Object()
		kept := len(got.Status.PodStates)
		if all := len(c.object.Status.PodStates); kept < c.least || s.isCut != (kept < all) {
			t.Errorf("%s: %d of %d are kept, cut %t", name, kept, all, s.isCut)
		}
		for i := range kept {
			pod := fmt.Sprint("db-", i)
			if diff := cmp.Diff(c.object.Status.PodStates[pod], got.Status.PodStates[pod]); diff != "" {
				t.Fatalf("%s: %s (-want +got):\n%s", name, pod, diff)
			}
		}
		for pod, isKept := range map[string]bool{"db-0": true, fmt.Sprint("db-", kept-1): true, "db": false} {
			one, want := s.objectOf(pod).Status.PodStates, got.Status.PodStates[pod]
			if len(one) > 0 != isKept || isKept && !reflect.DeepEqual(one[pod], want) {
				t.Errorf("%s: of %s alone %v, want %v", name, pod, one, want)
			}
		}
		if !s.hasNode(got.Status.PodStates["db-1"].NodeName) || s.hasNode("node9") {
			t.Errorf("%s: does not know its nodes", name)
		}
		if again := storedOf(got); again.isCut || len(again.Object().Status.PodStates) != kept {
			t.Errorf("%s: what is kept is cut again", name)
		}
	}
}

func TestParseKinds(t *testing.T) {
	if kinds, err := parseKinds(""); err != nil || !slices.Equal(kinds, kube.StatefulSets) || len(kinds) == 0 {
		t.Errorf("none: %v, %v", kinds, err)
	}
	kinds, err := parseKinds("example.com/v1/Database,apps/v1/StatefulSet")
	want := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Database"}
	if err != nil || len(kinds) != len(kube.StatefulSets)+1 || kinds[len(kinds)-1] != want {
		t.Errorf("%v, %v", kinds, err)
	}
	for _, bad := range []string{"Example/v1/Database", "example.com/1v/Database", "example.com/v1/Data'base",
		"/v1/Database", "Database", "example.com/Database", "example.com/v1/Database,", "a/b/c/d"} {
		_, err := parseKinds(bad)
		check.Error(t, err, "want group/version/Kind", bad)
	}
}
