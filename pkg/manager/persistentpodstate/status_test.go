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
	"github.com/leasehold-cni/leasehold/test/check"
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
		got := computeStatus(o, tt.workload, nil, three().node)
		check.Equal(t, got.TargetUID, tt.want, tt.workload)
		check.Equal(t, got.ObservedGeneration, 7)
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
			check.NoDiff(t, cmp.Diff(tt.want, places(got)))
			again := state(func(o *pps.PersistentPodState) { o.Spec, o.Status = tt.object.Spec, got })
			if second := computeStatus(again, tt.workload, tt.pods,
				three().node); !equality.Semantic.DeepEqual(got, second) {
				t.Errorf("not idempotent: %s", cmp.Diff(got, second))
			}
		})
	}
}

// What is recorded of a pod that was Ready on node1, and of its node.
func TestRecordedStates(t *testing.T) {
	without := func(node string) cluster {
		c := three()
		delete(c, node)
		return c
	}
	moved := three()
	moved["node1"][zone] = "z"
	former := map[string]string{hostname: "node1", zone: "a"}
	noted := aPod("db-0", readyOn("node1"), annotated("a", "2"), annotated("b", "2"), annotated("c", "3"))
	for name, tt := range map[string]struct {
		nodes cluster
		pods  []*workloadPod
		want  pps.PodState
	}{
		"its node has another zone now, and it is Ready": {moved, seen(aPod("db-0", readyOn("node1"))),
			pps.PodState{NodeName: "node1", NodeTopologyLabels: map[string]string{hostname: "node1", zone: "z"}}},
		"its node has another zone now, and it is deleted": {moved, nil,
			pps.PodState{NodeName: "node1", NodeTopologyLabels: map[string]string{hostname: "node1", zone: "z"},
				Annotations: map[string]string{"a": "1"}}},
		"its node is gone": {without("node1"), nil,
			pps.PodState{NodeName: "node1", NodeTopologyLabels: former, Annotations: map[string]string{"a": "1"}}},
		"it was Ready on another node, which is gone": {without("node2"), seen(aPod("db-0", readyOn("node2"))),
			pps.PodState{NodeName: "node2"}},
		"its annotations have changed": {three(), seen(noted),
			pps.PodState{NodeName: "node1", NodeTopologyLabels: former,
				Annotations: map[string]string{"a": "2", "b": "2"}}},
	} {
		o := state(recorded("db-0", "node1"), keeps("a", "b", "absent"))
		o.Status.PodStates["db-0"] = pps.PodState{NodeName: "node1", NodeTopologyLabels: former,
			Annotations: map[string]string{"a": "1"}}
		for range 2 {
			o.Status = computeStatus(o, db(), tt.pods, tt.nodes.node)
			check.NoDiff(t, cmp.Diff(tt.want, o.Status.PodStates["db-0"]), name)
		}
	}
}
