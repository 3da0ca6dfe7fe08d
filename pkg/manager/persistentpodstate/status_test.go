package persistentpodstate

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// places returns the nodes of the pods in a status.
func places(s pps.PersistentPodStateStatus) map[string]string {
	at := map[string]string{}
	for name, p := range s.PodStates {
		at[name] = p.NodeName
	}
	return at
}

// The recorded states are those of one workload, not of others that had or will have its name.
func TestStatusNamesTheWorkload(t *testing.T) {
	other := db()
	other.UID = "set-2"
	ends := db()
	ends.UID, ends.Terminating = "set-3", true
	for _, tt := range []struct {
		workload *workload
		want     string
	}{{db(), "set-1"}, {other, "set-2"}, {ends, "set-1"}, {nil, "set-1"}} {
		o := state()
		o.Generation = 7
		if got := computeStatus(o, tt.workload, nil, three().node); got.TargetUID != tt.want ||
			got.ObservedGeneration != 7 {
			t.Errorf("%+v: %q of generation %d", tt.workload, got.TargetUID, got.ObservedGeneration)
		}
	}
}

func TestStatus(t *testing.T) {
	without := db(func(u *unstructured.Unstructured) { delete(u.Object["spec"].(map[string]any), "replicas") })
	later := metav1.NewTime(began.Add(2 * time.Hour))
	ofNobody := func(o *pps.PersistentPodState) { o.Status.TargetUID = "" }
	remade := func(w *workload) *workload { w.UID, w.Created = "set-2", began.Add(90*time.Minute); return w }
	tests := []struct {
		name     string
		object   *pps.PersistentPodState
		workload *workload
		pods     []*workloadPod
		want     map[string]string
	}{
		{"no pods yet", state(), db(), seen(), map[string]string{}},
		{"a pod is Ready", state(), db(), seen(aPod("db-0", readyOn("node1"))), map[string]string{"db-0": "node1"}},
		{"a pod is not Ready yet", state(), db(), seen(aPod("db-0", startedOn("node1"))), map[string]string{}},
		{"a pod is Ready on another node", state(recorded("db-0", "node1")), db(), seen(aPod("db-0", readyOn("node2"))),
			map[string]string{"db-0": "node2"}},
		{"a pod starts on another node", state(recorded("db-0", "node1")), db(), seen(aPod("db-0", startedOn("node2"))),
			map[string]string{"db-0": "node1"}},
		{"a pod is deleted", state(recorded("db-0", "node1")), db(), seen(), map[string]string{"db-0": "node1"}},
		{"a pod is deleted, of a status without a workload", state(recorded("db-0", "node1"), ofNobody), db(), seen(),
			map[string]string{"db-0": "node1"}},
		{"a pod of another workload is Ready", state(), db(), seen(aPod("db-0", readyOn("node1"), ownedBy("set-0"))),
			map[string]string{}},
		{"a pod is Ready, the workload is deleted", state(), nil, seen(aPod("db-0", readyOn("node1"))),
			map[string]string{"db-0": "node1"}},
		{"any ordinal of a workload without replicas", state(recorded("db-7", "node1")), without, seen(),
			map[string]string{"db-7": "node1"}},
		{"scaled down, the pod exists", state(recorded("db-2", "node1")), db(with(int64(1), "spec", "replicas")),
			seen(aPod("db-2", startedOn("node1"))), map[string]string{"db-2": "node1"}},
		{"scaled down, the pod is deleted", state(recorded("db-0", "node2", "db-2", "node1")),
			db(with(int64(1), "spec", "replicas")), seen(), map[string]string{"db-0": "node2"}},
		{"scaled to zero", state(recorded("db-0", "node2")), db(with(int64(0), "spec", "replicas")), seen(),
			map[string]string{}},
		{"scaled to zero, WhenDeleted", state(recorded("db-0", "node2"), until(pps.WhenDeleted)),
			db(with(int64(0), "spec", "replicas")), seen(), map[string]string{"db-0": "node2"}},
		{"workload deleted, WhenDeleted", state(recorded("db-0", "node2"), until(pps.WhenDeleted)), nil, seen(),
			map[string]string{}},
		{"workload deleted, its pods exist", state(recorded("db-0", "node2", "db-1", "node1")), nil,
			seen(aPod("db-0", startedOn("node2"))), map[string]string{"db-0": "node2"}},
		{"workload recreated", state(recorded("db-0", "node2"), until(pps.WhenDeleted)),
			remade(db()), seen(), map[string]string{}},
		{"workload recreated, a pod starts elsewhere", state(recorded("db-0", "node2")), remade(db()),
			seen(aPod("db-0", startedOn("node1"), ownedBy("set-2"), func(p *corev1.Pod) {
				p.CreationTimestamp = later
			})),
			map[string]string{}},
		{"workload recreated, a pod of the former one exists", state(recorded("db-0", "node2")), remade(db()),
			seen(aPod("db-0", startedOn("node2"))), map[string]string{}},
		{"workload recreated, adopts a pod", state(recorded("db-0", "node2")), remade(db()),
			seen(aPod("db-0", startedOn("node2"), ownedBy("set-2"))), map[string]string{"db-0": "node2"}},
		{"ordinals start at 5, a pod is deleted", state(recorded("db-5", "node1", "db-0", "node2")),
			db(with(int64(5), "spec", "ordinals", "start")), seen(), map[string]string{"db-5": "node1"}},
		{"a reserved ordinal", state(recorded("db-1", "node1", "db-3", "node2")),
			db(with([]any{int64(1)}, "spec", "reserveOrdinals")), seen(), map[string]string{"db-3": "node2"}},
		{"the state of another workload's pod", state(recorded("web-0", "node1")), db(), seen(), map[string]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := computeStatus(tt.object, tt.workload, tt.pods, three().node)
			if diff := cmp.Diff(tt.want, places(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again := state(func(o *pps.PersistentPodState) { o.Spec, o.Status = tt.object.Spec, got })
			if second := computeStatus(again, tt.workload, tt.pods,
				three().node); !equality.Semantic.DeepEqual(got, second) {
				t.Errorf("not idempotent: %s", cmp.Diff(got, second))
			}
		})
	}
}

// The value of a label changes, the node and the keys do not.
func TestStatusFollowsTheLabelsOfTheNode(t *testing.T) {
	c := three()
	c["node1"][zone] = "z"
	for _, pods := range [][]*workloadPod{seen(aPod("db-0", readyOn("node1"))), seen()} {
		got := computeStatus(state(recorded("db-0", "node1")), db(), pods, c.node)
		want := map[string]string{hostname: "node1", zone: "z"}
		if diff := cmp.Diff(want, got.PodStates["db-0"].NodeTopologyLabels); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestLabelsOfAGoneNodeStay(t *testing.T) {
	c := three()
	delete(c, "node1")
	got := computeStatus(state(recorded("db-0", "node1")), db(), nil, c.node)
	if diff := cmp.Diff(state(recorded("db-0", "node1")).Status.PodStates, got.PodStates); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLabelsOfAnotherNodeAreNotKept(t *testing.T) {
	c := three()
	delete(c, "node2")
	got := computeStatus(state(recorded("db-0", "node1")), db(),
		seen(aPod("db-0", readyOn("node2"))), c.node)
	if labels := got.PodStates["db-0"].NodeTopologyLabels; len(labels) > 0 {
		t.Errorf("node2 has %v", labels)
	}
}

// Annotations are recorded by key, and follow the pod.
func TestAnnotationsAreRecordedByKey(t *testing.T) {
	pod := aPod("db-0", readyOn("node1"), annotated("a", "1"), annotated("b", "2"), annotated("c", "3"))
	o := state(keeps("a", "b", "absent"))
	o.Status = computeStatus(o, db(), seen(pod), three().node)
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, o.Status.PodStates["db-0"].Annotations); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again := computeStatus(o, db(), seen(pod), three().node)
	if !equality.Semantic.DeepEqual(o.Status, again) {
		t.Error("an up-to-date status changes")
	}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "a", "changed")
	if now := computeStatus(o, db(), seen(pod),
		three().node); now.PodStates["db-0"].Annotations["a"] != "changed" {
		t.Error("a changed annotation is not recorded")
	}
}
