package persistentpodstate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// Statuses that differ in one part are not equal.
func TestIsEqual(t *testing.T) {
	full := func() pps.PersistentPodStateStatus {
		return pps.PersistentPodStateStatus{ObservedGeneration: 1, TargetUID: "u", PodStates: map[string]pps.PodState{
			"db-0": {NodeName: "n", NodeTopologyLabels: map[string]string{"a": "b"},
				Annotations: map[string]string{"c": "d"}}}}
	}
	with := func(change func(*pps.PodState)) func(*pps.PersistentPodStateStatus) {
		return func(s *pps.PersistentPodStateStatus) {
			p := s.PodStates["db-0"]
			change(&p)
			s.PodStates["db-0"] = p
		}
	}
	for name, change := range map[string]func(*pps.PersistentPodStateStatus){
		"generation":  func(s *pps.PersistentPodStateStatus) { s.ObservedGeneration = 2 },
		"target":      func(s *pps.PersistentPodStateStatus) { s.TargetUID = "v" },
		"pods":        func(s *pps.PersistentPodStateStatus) { s.PodStates["db-1"] = pps.PodState{} },
		"node":        with(func(p *pps.PodState) { p.NodeName = "m" }),
		"labels":      with(func(p *pps.PodState) { p.NodeTopologyLabels = map[string]string{"a": "c"} }),
		"annotations": with(func(p *pps.PodState) { p.Annotations = nil }),
	} {
		other := full()
		change(&other)
		if isEqual(full(), other) || isEqual(other, full()) {
			t.Errorf("another %s is equal", name)
		}
	}
	if !isEqual(full(), full()) {
		t.Error("a status is not equal to itself")
	}
}

// Whether a recorded state stays, for each relation of the object, the workload and the pod.
func TestStays(t *testing.T) {
	exists := podHistory{Pod: &observation{Owner: db().UID}}
	for name, c := range map[string]struct {
		target string
		w      *workload
		pod    podHistory
		want   bool
	}{
		"expected, before the first status": {"", db(), podHistory{}, true},
		"expected":                          {string(db().UID), db(), podHistory{}, true},
		"of another workload":               {"other", db(), podHistory{}, false},
		"no workload":                       {string(db().UID), nil, podHistory{}, false},
		"no workload, and the pod exists":   {string(db().UID), nil, exists, true},
		"the pod exists":                    {string(db().UID), db(), exists, true},
	} {
		o := state()
		o.Status.TargetUID = c.target
		if got := stays(o, c.w, "db-0", c.pod); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	o := state(requires("z", "a"), prefers(pps.PreferredTopologyTerm{Weight: 1, Preference: pps.Term("m", "a")}))
	if got := labelsOf(&o.Spec); !slices.Equal(got, []string{"a", "m", "z"}) {
		t.Errorf("labels %q, want them sorted and once each", got)
	}
}

func TestParseKindsOfEachPart(t *testing.T) {
	if kinds, err := parseKinds(""); err != nil || !slices.Equal(kinds, builtIn) || len(kinds) == 0 {
		t.Errorf("none: %v, %v", kinds, err)
	}
	kinds, err := parseKinds("example.com/v1/Database")
	want := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Database"}
	if err != nil || len(kinds) != len(builtIn)+1 || kinds[len(kinds)-1] != want {
		t.Errorf("%v, %v", kinds, err)
	}
	for _, bad := range []string{"Example/v1/Database", "example.com/1v/Database", "example.com/v1/Data'base",
		"/v1/Database"} {
		if kinds, err := parseKinds(bad); err == nil {
			t.Errorf("%q: %v", bad, kinds)
		}
	}
	for grace, ok := range map[string]bool{"0s": true, "1ns": true, "-1ns": false} {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		p := New(f)
		if err := f.Parse([]string{"--pps-gone-grace", grace}); err != nil || (p.Validate() == nil) != ok {
			t.Errorf("a grace of %s: %v, %v", grace, err, p.Validate())
		}
	}
}

func TestRequeue(t *testing.T) {
	other := errors.New("other")
	for err, want := range map[error]time.Duration{errNoKind: resyncInterval, errNotSynced: time.Second, other: 0} {
		got, failed := requeue(err)
		if got != (reconcile.Result{RequeueAfter: want}) || (failed != nil) != (err == other) {
			t.Errorf("%v: %+v, %v", err, got, failed)
		}
	}
}

// An object with the same target that is older takes precedence; a single one has effect.
func TestRecorderOfTheOldestObject(t *testing.T) {
	v := viewOf(state(requires(zone))).has(statefulSet, true, db())
	if all := v.Objects(targetOf(state())); len(all) != 1 {
		t.Fatalf("%d objects", len(all))
	}
	h := seen(aPod("db-0", startedOn("node1")))
	if got := h.Waiting(""); len(got) != 0 {
		t.Errorf("a pod that runs is waiting: %v", got)
	}
	if keys := v.allTargets(); len(keys) != 1 || keys[0] != targetOf(state()) {
		t.Errorf("targets %v", keys)
	}
}

// A pod that has a node, or no name, is not changed.
func TestPodsThatAreNotInjected(t *testing.T) {
	v := viewOf(state(requires(zone), recorded("db-0", "node1"))).has(statefulSet, true, db())
	v.nodes = three()
	if got := v.admit(t, aPod("db-0")); got.Spec.NodeSelector[zone] == "" {
		t.Fatalf("not injected: %v, %v", got.Spec.NodeSelector, got.Annotations)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"with a node":    func(p *corev1.Pod) { p.Spec.NodeName = "node2" },
		"without a name": func(p *corev1.Pod) { p.Name = "" },
		"without an owner": func(p *corev1.Pod) {
			p.OwnerReferences = nil
		},
	} {
		got := v.admit(t, aPod("db-0", change))
		if len(got.Spec.NodeSelector) > 0 || got.Annotations[pps.AnnotationInjected] != "" {
			t.Errorf("%s: %v, %v", name, got.Spec.NodeSelector, got.Annotations)
		}
	}
	// The states of an object belong to the workload that its status names.
	for uid, want := range map[string]bool{"set-1": true, "": true, "earlier": false} {
		o := state(requires(zone), recorded("db-0", "node1"))
		o.Status.TargetUID = uid
		v := viewOf(o).has(statefulSet, true, db())
		v.nodes = three()
		if got := v.admit(t, aPod("db-0")); (got.Spec.NodeSelector[zone] != "") != want {
			t.Errorf("a status of the workload %q: %v", uid, got.Spec.NodeSelector)
		}
	}
	leaving := state(requires(zone), recorded("db-0", "node1"))
	leaving.DeletionTimestamp = &metav1.Time{Time: began}
	if got := viewOf(leaving).has(statefulSet, true, db()).admit(t, aPod("db-0")); len(got.Spec.NodeSelector) > 0 {
		t.Errorf("an object that is being deleted: %v", got.Spec.NodeSelector)
	}
}

// The flags reach the webhook and the recorder.
func TestFlagsAreUsed(t *testing.T) {
	mgr := newManager(t, newCluster(t), logr.Discard())
	v, r, events := viewOf(), &role{}, &reasons{}
	for _, keepGone := range []bool{true, false} {
		p := &Feature{keepGone: keepGone, goneGrace: time.Hour}
		w, rec := p.podWebhook(v, logr.Discard()), p.recorder(mgr, v, r, events, logr.Discard())
		if w.view != v || w.releaseGone == keepGone || w.grace != time.Hour {
			t.Errorf("keepGone %v: webhook %+v", keepGone, w)
		}
		if rec.view != v || rec.releaseGone == keepGone || rec.grace != time.Hour || rec.client == nil ||
			rec.role != r || rec.events != events {
			t.Errorf("keepGone %v: recorder %+v", keepGone, rec)
		}
	}
}

// A state counts if it is of the pod that exists, or of one that the workload will create again.
func TestCounts(t *testing.T) {
	of := func(uid, owner types.UID) *observation { return &observation{UID: uid, Owner: owner} }
	both := func(uid, owner, readyUID, readyOwner types.UID) podHistory {
		return podHistory{Pod: of(uid, owner), Ready: of(readyUID, readyOwner)}
	}
	terminating := db()
	terminating.Terminating = true
	for name, c := range map[string]struct {
		workload *workload
		pod      podHistory
		want     bool
	}{
		"the pod exists":                          {db(), both("p1", "set-1", "p1", "set-1"), true},
		"it is of another workload":               {db(), both("p1", "set-0", "p1", "set-0"), false},
		"there is no workload":                    {nil, both("p1", "set-0", "p1", "set-0"), true},
		"the workload terminates":                 {terminating, both("p1", "set-0", "p1", "set-0"), true},
		"its successor exists":                    {db(), both("p2", "set-1", "p1", "set-1"), true},
		"its successor exists, without workload":  {nil, both("p2", "set-1", "p1", "set-1"), false},
		"its successor exists, terminating":       {terminating, both("p2", "set-1", "p1", "set-1"), false},
		"its successor exists, other workload":    {db(), both("p2", "set-1", "p1", "set-0"), false},
		"it was deleted":                          {db(), podHistory{Ready: of("p1", "set-1")}, true},
		"it was deleted, without workload":        {nil, podHistory{Ready: of("p1", "set-1")}, false},
		"it was deleted, of an earlier workload":  {db(), podHistory{Ready: of("p1", "set-0")}, false},
		"it was deleted, the workload terminates": {terminating, podHistory{Ready: of("p1", "set-1")}, false},
	} {
		if got := counts(state(), c.workload, "db-0", c.pod); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A pod is forgotten by its workload if it was deleted, or if its controller has changed.
func TestObservedPods(t *testing.T) {
	pod := aPod("db-0")
	other := pod.DeepCopy()
	other.OwnerReferences[0].Name = "other"
	before, now := podViewOf(pod, builtIn, noKeys), podViewOf(pod, builtIn, noKeys)
	moved := podViewOf(other, builtIn, noKeys)
	for name, c := range map[string]struct {
		now               *podView
		exists, elsewhere bool
	}{
		"it has changed":          {now, true, false},
		"it was deleted":          {nil, false, false},
		"another controls it now": {moved, false, true},
	} {
		v := viewOf(state()).has(statefulSet, true, db())
		v.observe(nil, before)
		v.observe(before, c.now)
		if got := v.history.Pods(before.target)["db-0"]; got.Exists() != c.exists {
			t.Errorf("%s: %+v", name, got)
		}
		if got := v.history.Pods(moved.target)["db-0"]; got.Exists() != c.elsewhere {
			t.Errorf("%s: elsewhere %+v", name, got)
		}
	}
}

// refuses is an API server that rejects every write with an error.
type refuses struct {
	client.Client
	err error
}

func (r refuses) Create(context.Context, client.Object, ...client.CreateOption) error { return r.err }
func (r refuses) Update(context.Context, client.Object, ...client.UpdateOption) error { return r.err }
func (r refuses) Delete(context.Context, client.Object, ...client.DeleteOption) error { return r.err }

// The generator returns the errors of its writes, but not those that another event makes good.
func TestGeneratorReturnsErrors(t *testing.T) {
	resource := pps.GroupVersion.WithResource("persistentpodstates").GroupResource()
	conflict, exists := apierrors.NewConflict(resource, "db", nil), apierrors.NewAlreadyExists(resource, "db")
	failure := apierrors.NewInternalError(errors.New("no"))
	for name, c := range map[string]struct {
		action  action
		ignored []error
	}{
		"create": {action{Create: state()}, []error{nil, exists, conflict}},
		"update": {action{Update: state()}, []error{nil, conflict}},
		"delete": {action{Delete: state()}, []error{nil, conflict}},
	} {
		for _, err := range c.ignored {
			g := &generator{client: refuses{err: err}, live: stored{state()}}
			if got := g.act(t.Context(), c.action); got != nil {
				t.Errorf("%s, %v: %v", name, err, got)
			}
		}
		g := &generator{client: refuses{err: failure}, live: stored{state()}}
		if got := g.act(t.Context(), c.action); !errors.Is(got, failure) {
			t.Errorf("%s, %v: %v", name, failure, got)
		}
	}
}

// An object that is being deleted does not prevent another one with its target.
func TestValidatorIgnoresObjectsThatAreDeleted(t *testing.T) {
	second := state(func(o *pps.PersistentPodState) { o.Name = "second" })
	for leaving, want := range map[bool]bool{true: true, false: false} {
		first := state()
		if leaving {
			first.DeletionTimestamp = &metav1.Time{Time: began}
		}
		v := &validator{view: viewOf(first), kinds: builtIn}
		if resp := v.Handle(t.Context(), request(t, second)); resp.Allowed != want {
			t.Errorf("the first one is being deleted: %v; the second is allowed: %v", leaving, resp.Allowed)
		}
		if resp := v.Handle(t.Context(), request(t, first)); !resp.Allowed {
			t.Errorf("the first one again: %v", resp.Result)
		}
	}
}

// Each event enqueues the objects, workloads and webhook configurations that depend on it.
func TestEventsEnqueue(t *testing.T) {
	object := state()
	other := state(func(o *pps.PersistentPodState) { o.Name, o.Spec.TargetRef.Name = "other", "other" })
	second := state(func(o *pps.PersistentPodState) { o.Name = "second" }) // with the same target
	pod := aPod("db-0")
	moved := pod.DeepCopy()
	moved.OwnerReferences[0].Name = "other"
	before, elsewhere := podViewOf(pod, builtIn, noKeys), podViewOf(moved, builtIn, noKeys)
	for name, c := range map[string]struct {
		event func(v *clusterView)
		want  string
	}{
		"an object is added":   {func(v *clusterView) { v.objectAdded(object) }, "states db, targets db, cluster"},
		"an object is changed": {func(v *clusterView) { v.objectUpdated(second, object) }, "states db, targets db"},
		"an object is deleted": {func(v *clusterView) { v.objectDeleted(object) },
			"states db second, targets db, cluster"},
		"a workload is changed":   {func(v *clusterView) { v.workloadUpdated(db()) }, "states db second, targets db"},
		"a workload is deleted":   {func(v *clusterView) { v.workloadDeleted(db()) }, "states db second, targets db"},
		"a pod is added":          {func(v *clusterView) { v.observe(nil, before) }, "states db second"},
		"a pod is deleted":        {func(v *clusterView) { v.observe(before, nil) }, "states db second"},
		"a pod has another owner": {func(v *clusterView) { v.observe(before, elsewhere) }, "states db other second"},
	} {
		v := viewOf(object, other, second).has(statefulSet, true, db())
		v.pods = listed[*corev1.Pod, *podView](nil, nil)
		v.states.queue, v.targets.queue = newQueue[types.NamespacedName](), newQueue[targetKey]()
		v.cluster.queue = newQueue[struct{}]()
		c.event(v)
		var got []string
		if names := drain(v.states.queue, func(n types.NamespacedName) string { return n.Name }); names != "" {
			got = append(got, "states"+names)
		}
		if names := drain(v.targets.queue, func(k targetKey) string { return k.Name }); names != "" {
			got = append(got, "targets"+names)
		}
		if drain(v.cluster.queue, func(struct{}) string { return "" }) != "" {
			got = append(got, "cluster")
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%s: enqueued %s, want %s", name, text, c.want)
		}
	}
}

func newQueue[T comparable]() workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[T]())
}

// drain returns the names of the items in a queue, each after a space, and shuts it down.
func drain[T comparable](queue workqueue.TypedRateLimitingInterface[T], name func(T) string) string {
	defer queue.ShutDown()
	var names []string
	for queue.Len() > 0 {
		item, _ := queue.Get()
		queue.Done(item)
		names = append(names, " "+name(item))
	}
	slices.Sort(names)
	return strings.Join(names, "")
}
