package persistentpodstate

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

var statefulSet = schema.GroupKind{Group: "apps", Kind: "StatefulSet"}

// has adds the workloads of a kind to a view.
func (v *clusterView) has(kind schema.GroupKind, synced bool, workloads ...*workload) *clusterView {
	var views []*unstructured.Unstructured
	byName := map[string]*workload{}
	for _, w := range workloads {
		u := &unstructured.Unstructured{}
		u.SetNamespace(w.Namespace)
		u.SetName(w.Name)
		views, byName[w.Name] = append(views, u), w
	}
	view := func(u *unstructured.Unstructured) *workload { return byName[u.GetName()] }
	v.workloads[kind] = listed(view, nil, views...)
	if !synced {
		v.workloads[kind] = &watched[*workload]{Informer: informer.New(view, nil)}
	}
	return v
}

// admit returns a new pod after its admission by a podWebhook with the view.
func (v *clusterView) admit(t *testing.T, pod *corev1.Pod) corev1.Pod {
	t.Helper()
	req := request(t, pod)
	w := &podWebhook{view: v, releaseGone: true, grace: time.Minute, log: logr.Discard()}
	return patched[corev1.Pod](t, req, w.handler().Handle(t.Context(), req))
}

// The history of pods that were scaled down is removed, as their recorded state is.
func TestScaledDownPodIsForgotten(t *testing.T) {
	three, one := db(), db(with(int64(1), "spec", "replicas"))
	for _, tt := range []struct {
		name   string
		object *pps.PersistentPodState
		events func(v *clusterView, pod *podView)
		bound  bool
	}{
		{"deleted", state(requires(hostname)), func(v *clusterView, pod *podView) {
			v.observe(pod, nil)
		}, true},
		{"scaled down, then deleted", state(requires(hostname)), func(v *clusterView, pod *podView) {
			v.has(statefulSet, true, one).workloadUpdated(one)
			v.observe(pod, nil)
			v.has(statefulSet, true, three).workloadUpdated(three)
		}, false},
		{"deletion observed before the scale down", state(requires(hostname)), func(v *clusterView, pod *podView) {
			v.observe(pod, nil)
			v.has(statefulSet, true, one).workloadUpdated(one)
			v.has(statefulSet, true, three).workloadUpdated(three)
		}, false},
		{"scaled down and up while terminating", state(requires(hostname)), func(v *clusterView, pod *podView) {
			v.has(statefulSet, true, one).workloadUpdated(one)
			v.has(statefulSet, true, three).workloadUpdated(three)
			v.observe(pod, nil)
		}, true},
		{"scaled down, WhenDeleted", state(requires(hostname), until(pps.WhenDeleted)),
			func(v *clusterView, pod *podView) {
				v.has(statefulSet, true, one).workloadUpdated(one)
				v.observe(pod, nil)
			}, true},
		{"workload not synced", state(requires(hostname)), func(v *clusterView, pod *podView) {
			v.has(statefulSet, false, one)
			v.observe(pod, nil)
		}, true},
	} {
		v := viewOf(tt.object).has(statefulSet, true, three)
		pod := podViewOf(aPod("db-2", readyOn("node1")), builtIn, noKeys)
		v.observe(nil, pod)
		tt.events(v, pod)
		got := v.admit(t, aPod("db-2"))
		isInjected := got.Annotations[pps.AnnotationInjected] != ""
		if (got.Spec.NodeSelector[hostname] == "node1") != tt.bound || isInjected != tt.bound {
			t.Errorf("%s: injected %v, %v", tt.name, got.Spec.NodeSelector, got.Annotations)
		}
	}
}

// Pods that wait for a node that is gone are distinguished from pods that wait for something else.
func TestStuckPods(t *testing.T) {
	o := state(requires(hostname, zone))
	bound := func(v *clusterView, pod *corev1.Pod) *corev1.Pod { p := v.admit(t, pod); p.UID = pod.UID; return &p }
	another := func(p *corev1.Pod) *corev1.Pod { annotate(p, pps.AnnotationInjected, "web"); return p }
	selects := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{hostname: "node1"} }
	patient := func(patience string) *corev1.Pod { // created a minute after began
		return bound(viewOf(state(requires(hostname), recorded("db-0", "node1"))), aPod("db-0",
			annotated(annotationPatience, patience)))
	}
	remembers := func(objects ...*pps.PersistentPodState) *clusterView {
		v := viewOf(objects...).has(statefulSet, true, db())
		v.observe(nil, podViewOf(aPod("db-0", startedOn("node1")), builtIn, noKeys))
		return v
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
		{"injected from the history, never recorded", bound(remembers(o), aPod("db-0")), nil, time.Hour,
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
		{"too young", bound(remembers(o), aPod("db-0")), nil, 50 * time.Second, time.Hour, false, 10 * time.Second},
		{"this replica has just started", bound(remembers(o), aPod("db-0")), nil, time.Hour, 20 * time.Second, false,
			40 * time.Second},
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
		v.nodes = tt.nodes
		r := &recorder{view: v, releaseGone: true, grace: time.Minute}
		now := tt.pod.CreationTimestamp.Add(tt.age)
		v.startedAt = now.Add(-tt.watching)
		names, requeueAfter, err := r.stuck(t.Context(), o, seen(tt.pod).Pods(targetOf(o)), now)
		if err != nil || slices.Equal(names, []string{"db-0"}) != tt.want || requeueAfter != tt.requeueAfter {
			t.Errorf("%s: %q, %v, %v; node selector %v", tt.name, names, requeueAfter, err, tt.pod.Spec.NodeSelector)
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
		v.nodes = threeWithoutNode1(time.Now().Add(-tt.since))
		pod := v.admit(t, aPod("db-0", annotated(annotationPatience, tt.patience)))
		if _, requires := pod.Spec.NodeSelector[hostname]; requires != tt.want || pod.Spec.NodeSelector[zone] != "a" {
			t.Errorf("patience %q, not ready for %s: %v", tt.patience, tt.since, pod.Spec.NodeSelector)
		}
		if reason := pod.Annotations[annotationReason]; strings.Contains(reason, "not been ready") == tt.want {
			t.Errorf("patience %q, not ready for %s: reason %q", tt.patience, tt.since, reason)
		}
	}
}

// A node that is registered again within the grace period counts as present all the time.
func TestDepartedNodeIsWaitedFor(t *testing.T) {
	v := viewOf(state(requires(hostname), recorded("db-0", "node1")))
	left := three()
	delete(left, "node1")
	v.nodes = left
	bound := func() bool { pod := v.admit(t, aPod("db-0")); return pod.Spec.NodeSelector[hostname] == "node1" }
	hostExists := func() bool {
		exists, err := v.HostExists(t.Context(), "node1")
		if err != nil {
			t.Fatal(err)
		}
		return exists
	}
	v.startedAt = time.Now()
	if !bound() {
		t.Error("a node that may have been removed before this replica started is not waited for")
	}
	v.startedAt = time.Now().Add(-time.Hour)
	if bound() || hostExists() {
		t.Error("a node that was never observed is waited for")
	}
	v.departed.Removed(three().all()[0], began)
	if !bound() || !hostExists() {
		t.Error("a departed node is not waited for")
	}
	if expired := v.departed.Expire(began.Add(59 * time.Second)); len(expired) > 0 || !bound() {
		t.Errorf("expired too early: %v", expired)
	}
	if expired := v.departed.Expire(began.Add(time.Minute)); len(expired) != 1 || expired[0].Name != "node1" ||
		bound() || hostExists() {
		t.Errorf("not expired: %v", expired)
	}
	v.departed.Removed(three().all()[0], began)
	v.departed.Added("node1")
	if expired := v.departed.Expire(began.Add(time.Hour)); len(expired) > 0 {
		t.Errorf("a node that was added again expired: %v", expired)
	}
}

func TestWaiting(t *testing.T) {
	s := seen(aPod("db-0", func(p *corev1.Pod) {
		require(p, map[string]string{hostname: "node1"})
		annotate(p, "leasehold.dev/topology-required", hostname+"=node1")
	}))
	if got := s.Waiting("node1"); !slices.Equal(got, []targetKey{db().targetKey}) {
		t.Errorf("%v", got)
	}
	if got := s.Waiting("node2"); len(got) > 0 {
		t.Errorf("%v wait for another node", got)
	}
}

// Reconciling is repeated if a kind is not served or not synced yet.
func TestReconcileIsRepeatedUntilSynced(t *testing.T) {
	r := &role{}
	r.state.Store(serving)
	object := state()
	pods := listed[*corev1.Pod, *podView](nil, nil)
	noNodes := viewOf(object).has(statefulSet, true, db())
	noNodes.nodesSynced = func() bool { return false }
	if labels, err := noNodes.Nodes(t.Context(), "node1"); !errors.Is(err, errNotSynced) {
		t.Errorf("nodes before they are synced: %v, %v", labels, err)
	}
	for _, v := range []*clusterView{viewOf(object), viewOf(object).has(statefulSet, false), noNodes} {
		v.pods = pods
		g, err := (&generator{view: v, role: r}).Reconcile(t.Context(), db().targetKey)
		if err != nil || g.RequeueAfter <= 0 {
			t.Errorf("generator:  %+v, %v", g, err)
		}
		result, err := (&recorder{view: v, role: r}).Reconcile(t.Context(), keys([]*pps.PersistentPodState{object})[0])
		if err != nil || result.RequeueAfter <= 0 {
			t.Errorf("recorder: %+v, %v", result, err)
		}
	}
}

// slowMapper is a RESTMapper that blocks until answer is closed.
type slowMapper struct {
	apimeta.RESTMapper
	called, answer chan struct{}
}

func (s slowMapper) RESTMapping(kind schema.GroupKind, _ ...string) (*apimeta.RESTMapping, error) {
	s.called <- struct{}{}
	<-s.answer
	return nil, &apimeta.NoKindMatchError{GroupKind: kind}
}

func TestAdmissionDoesNotWaitForDiscovery(t *testing.T) {
	v := viewOf(state(recorded("db-0", "node1")))
	api := slowMapper{called: make(chan struct{}), answer: make(chan struct{})}
	v.mapper = api
	done := make(chan struct{})
	go func() { defer close(done); v.watchKinds() }()
	<-api.called
	if pod := v.admit(t, aPod("db-0")); pod.Annotations[pps.AnnotationInjected] != "db" {
		t.Errorf("%v", pod.Annotations)
	}
	close(api.answer)
	for {
		select {
		case <-api.called:
			continue
		case <-done:
		}
		break
	}
}

func TestNodesToCheck(t *testing.T) {
	selects := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{zone: "b"} }
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		was  string
		want string
	}{
		{"the former node", aPod("db-0"), "node1", "node1"},
		{"the pod excludes its former node", aPod("db-0", selects), "node1", "node1 node2 node3"},
		{"the former node is gone", aPod("db-0"), "node9", "node1 node2 node3"},
	} {
		nodes, err := viewOf().NodesToCheck(t.Context(), tt.pod, tt.was)
		var names []string
		for _, n := range nodes {
			names = append(names, n.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); err != nil || got != tt.want {
			t.Errorf("%s: %s, %v; want %s", tt.name, got, err, tt.want)
		}
	}
}

// configured is a manager of which only the configuration of its clients is used.
type configured struct {
	manager.Manager
	config rest.Config
}

func (c configured) GetConfig() *rest.Config     { return &c.config }
func (c configured) GetHTTPClient() *http.Client { return http.DefaultClient }

func TestSourcesWithAnInvalidConfiguration(t *testing.T) {
	for name, config := range map[string]rest.Config{
		"a rate without a burst": {Host: "http://127.0.0.1:0", QPS: 1, Burst: -1}, "no URL": {Host: "http://%"},
	} {
		if _, err := newSources(configured{config: config}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := newSources(configured{config: rest.Config{Host: "http://127.0.0.1:0"}}); err != nil {
		t.Error(err)
	}
}

// A RESTMapper keeps the kinds of a CRD that was deleted.
func TestKindOfADeletedCRDIsNotWatched(t *testing.T) {
	kind := builtIn[1]
	mapper := apimeta.NewDefaultRESTMapper(nil)
	mapper.Add(kind, apimeta.RESTScopeNamespace)
	api, err := dynamic.NewForConfig(&rest.Config{Host: "http://127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	v := viewOf()
	v.ctx, v.mapper, v.sources, v.crds = t.Context(), mapper, &sources{dynamic: api}, make(chan struct{}, 1)
	installer := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[struct{}]())
	v.cluster.queue = installer
	const crd, other = "statefulsets.apps.kruise.io", "others.apps.kruise.io"
	for i, step := range []struct {
		event func()
		want  error
	}{
		{func() { v.crdAdded(crd) }, errNotSynced},
		{func() { v.crdDeleted(other) }, errNotSynced},
		{func() { v.crdDeleted(crd) }, errNoKind},
		{func() { v.crdAdded(crd) }, errNotSynced},
	} {
		step.event()
		if installer.Len() != 1 {
			t.Fatalf("event %d does not reach the installer", i+1)
		}
		installer.Get()
		installer.Done(struct{}{})
		v.watchKinds()
		if _, err := v.Workload(targetKey{Kind: kind.GroupKind(), Namespace: "ns",
			Name: "db"}); !errors.Is(err, step.want) {
			t.Errorf("event %d: %v, want %v", i+1, err, step.want)
		}
	}
}

// TestAVersionThatIsServedInAMoment has a CRD of which the API server serves one version already.
func TestAVersionThatIsServedInAMoment(t *testing.T) {
	versions := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/apiextensions.k8s.io/v1/customresourcedefinitions" ||
			r.URL.Query().Get("fieldSelector") != "metadata.name=statefulsets.apps.kruise.io" {
			t.Errorf("it asks for %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinitionList","items":[%s]}`,
			versions)
	}))
	defer server.Close()
	api, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	kind := builtIn[1]
	mapper := apimeta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: kind.Group, Version: "v1alpha1"}})
	mapper.Add(kind.GroupKind().WithVersion("v1alpha1"), apimeta.RESTScopeNamespace)
	v := viewOf()
	v.ctx, v.mapper, v.sources = t.Context(), mapper, &sources{dynamic: api}
	crd := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",` +
		`"metadata":{"name":"statefulsets.apps.kruise.io"},"spec":{"versions":[%s]}}`
	const alpha = `{"name":"v1alpha1","served":true}`
	for list, want := range map[string]bool{
		"":                      true, // of an aggregated API
		fmt.Sprintf(crd, alpha): true,
		fmt.Sprintf(crd, alpha+`,{"name":"v1beta1","served":false}`): true,
		fmt.Sprintf(crd, alpha+`,{"name":"v1beta1","served":true}`):  false,
	} {
		versions = list
		if resource, ok := v.resource(kind); ok != want || ok && resource.Version != "v1alpha1" {
			t.Errorf("%s: %v, %t", list, resource, ok)
		}
	}
	server.Close()
	if resource, ok := v.resource(kind); ok {
		t.Errorf("nobody knows what the CRD says, and %v is watched", resource)
	}
	mapper.Add(kind, apimeta.RESTScopeNamespace)
	if resource, ok := v.resource(kind); !ok || resource.Version != kind.Version {
		t.Errorf("%v, %t", resource, ok)
	}
}

func TestReady(t *testing.T) {
	crds := func(synced bool, names ...string) *watched[string] {
		name := func(o *metav1.PartialObjectMetadata) string { return o.Name }
		var list []*metav1.PartialObjectMetadata
		for _, name := range names {
			list = append(list, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		if !synced {
			return &watched[string]{Informer: informer.New(name, nil)}
		}
		return listed(name, nil, list...)
	}
	none := func(v *clusterView) *clusterView { v.objects = nil; return v }
	for _, tt := range []struct {
		name string
		view *clusterView
		crds *watched[string]
		want bool
	}{
		{"CRDs are not watched yet", viewOf(), nil, false},
		{"CRDs are not synced", viewOf(), crds(false), false},
		{"no CRD", none(viewOf()), crds(true, "others.example.com"), true},
		{"CRD, objects not synced", none(viewOf()), crds(true, crdName), false},
		{"CRD, objects synced", viewOf(), crds(true, crdName), true},
	} {
		tt.view.crdList, tt.view.startedAt = tt.crds, time.Now()
		err := tt.view.Ready(nil)
		if (err == nil) != tt.want {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.want {
			tt.view.objects = nil // the CRD is created again
			tt.view.crdList = crds(true, crdName)
			if err := tt.view.Ready(nil); err != nil {
				t.Errorf("%s, and later: %v", tt.name, err)
			}
		}
	}
	late := none(viewOf())
	late.crdList, late.startedAt = crds(true, crdName), time.Now().Add(-time.Hour)
	if err := late.Ready(nil); err != nil {
		t.Errorf("not ready an hour after the start: %v", err)
	}
}

func TestWorkloadWithoutReplicasHasAnyOrdinal(t *testing.T) {
	w := db(func(u *unstructured.Unstructured) { delete(u.Object["spec"].(map[string]any), "replicas") })
	o := state(recorded("db-7", "node1"))
	if got := computeStatus(o, w, nil, three().nodes); !maps.Equal(places(got), map[string]string{"db-7": "node1"}) {
		t.Errorf("%v", places(got))
	}
}

func TestDiscoveryIsDue(t *testing.T) {
	var due []int
	for ticks := range 50 {
		if isDiscoveryDue(ticks) && ticks >= 18 {
			due = append(due, ticks)
		}
	}
	if want := []int{18, 19, 30, 45}; !slices.Equal(due, want) || !isDiscoveryDue(0) {
		t.Errorf("due after %v ticks, want %v", due, want)
	}
}

func noKeys(targetKey) []string { return nil }

// TestRecordedAnnotations has views of pods with the annotations that the PersistentPodStates of
// their workload name, and with those that the recorder reads.
func TestRecordedAnnotations(t *testing.T) {
	pod := aPod("db-0", readyOn("node1"))
	pod.Annotations = map[string]string{"a": "1", "b": "2", "c": "3", annotationReason: "r",
		pps.AnnotationInjected: "o"}
	const ours = "kruise.io/injected-persistent-pod-state:o leasehold.dev/topology-reason:r]"
	other := func(o *pps.PersistentPodState) { o.Name = "other" }
	web := func(o *pps.PersistentPodState) { o.Spec.TargetRef.Name = "web" }
	for _, c := range []struct {
		v    *clusterView
		want string
	}{
		{viewOf(), "map[" + ours},
		{viewOf(state(keeps("a", "absent"))), "map[a:1 " + ours},
		{viewOf(state(keeps("a")), state(keeps("c"), other)), "map[a:1 c:3 " + ours},
		{viewOf(state(keeps("a")), state(keeps("c"), other, web)), "map[a:1 " + ours},
	} {
		if got := fmt.Sprint(podViewOf(pod, builtIn, c.v.recordedKeys).seen.Annotations); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	pod.Annotations = map[string]string{"b": "2"}
	if got := podViewOf(pod, builtIn, viewOf(state(keeps("a"))).recordedKeys).seen.Annotations; got != nil {
		t.Errorf("of no key: %v", got)
	}
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
	got := podViewOf(pod, builtIn, v.recordedKeys)
	if h := got.seen.Hostname; h != selected || unsafe.StringData(h) != unsafe.StringData(selected) {
		t.Errorf("the hostname is %q, or keeps the text of the annotation", h)
	}
	if size := len(fmt.Sprintf("%#v", *got.seen)); size > 4<<10 {
		t.Errorf("the view has %d bytes", size)
	}
	if _, found := got.seen.Annotations["a"]; found || !got.seen.TooLong {
		t.Error("a part of the annotations would be recorded")
	}
	pod.Annotations["b"] = long[:maxRecorded-len("a1b")]
	if got := podViewOf(pod, builtIn, v.recordedKeys); got.seen.TooLong || got.seen.Annotations["a"] != "1" {
		t.Error("the longest annotations would not be recorded")
	}
	for name, owner := range map[string]metav1.OwnerReference{
		"name":    {APIVersion: "apps/v1", Name: long, UID: "set-1"},
		"UID":     {APIVersion: "apps/v1", Name: "db", UID: types.UID(long)},
		"version": {APIVersion: "apps/" + long, Name: "db", UID: "set-1"},
	} {
		owner.Kind, owner.Controller = "StatefulSet", new(true)
		pod.OwnerReferences[0] = owner
		got := podViewOf(pod, builtIn, noKeys)
		if (got != nil) != (name == "version") {
			t.Errorf("an owner's long %s: %+v", name, got)
		}
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
	got := objectOf(unstructuredOf(t, o))
	want := state(recorded("db-0", "node1", "db-1", "node2"))
	want.UID, want.ResourceVersion, want.CreationTimestamp = o.UID, o.ResourceVersion, o.CreationTimestamp
	want.Status.TargetUID = ""
	want.Labels = map[string]string{labelGenerated: generatedValue}
	want.OwnerReferences = []metav1.OwnerReference{of}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, change := range map[string]func(*pps.PersistentPodState){
		"labels":      requires(manyNames...),
		"preferences": prefers(pps.PreferredTopologyTerm{Weight: 1, Preference: pps.Term(manyNames...)}),
		"annotations": keeps(manyNames...),
	} {
		if got := objectOf(unstructuredOf(t, state(change))); !isUnfit(got) || len(labelsOf(&got.Spec)) > 0 {
			t.Errorf("too many %s: %+v", name, got.Spec)
		}
	}
}

func unstructuredOf(t *testing.T, o *pps.PersistentPodState) *unstructured.Unstructured {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}

// TestNewAnnotationIsRecorded has a PersistentPodState name another annotation of a pod that does
// not change.
func TestNewAnnotationIsRecorded(t *testing.T) {
	c := startManager(t, func(c *fakeapi.Cluster) {
		put(c, aPod("db-0", readyOn("node1"), annotated("role", "leader")))
		putSet(c, generates)
	})
	c.Until("recorded", func() bool { return recordedOf(c) == "db-0=node1/a db-1=node2/b" })
	putSet(c, generates, with("role", "metadata", "annotations", pps.AnnotationPodAnnotations))
	c.Until("the annotation is recorded", func() bool {
		var o pps.PersistentPodState
		c.Get(statesPath+"db", &o)
		return o.Status.PodStates["db-0"].Annotations["role"] == "leader"
	})
}
