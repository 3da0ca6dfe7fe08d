package persistentpodstate

import (
	"errors"
	"flag"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
		f := flag.NewFlagSet("", flag.ContinueOnError)
		p := New(f)
		if err := f.Parse([]string{"-pps-gone-grace", grace}); err != nil || (p.Validate() == nil) != ok {
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
