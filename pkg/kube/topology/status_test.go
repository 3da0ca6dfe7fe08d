package topology

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// places says where a status has pods.
func places(s pps.PersistentPodStateStatus) map[string]string {
	at := map[string]string{}
	for name, p := range s.PodStates {
		at[name] = p.NodeName
	}
	return at
}

func TestStatus(t *testing.T) {
	gone := aPod("db-0", readyOn("node2"))
	later := metav1.NewTime(began.Add(2 * time.Hour))
	remade := func(w *Workload) *Workload { w.UID, w.Created = "set-2", began.Add(90*time.Minute); return w }
	tests := []struct {
		story    string
		object   *pps.PersistentPodState
		workload *Workload
		pods     *Sights
		want     map[string]string
	}{
		{"nothing is there yet", state(), db(), seen(), map[string]string{}},
		{"a pod is Ready", state(), db(), seen(aPod("db-0", readyOn("node1"))), map[string]string{"db-0": "node1"}},
		{"a pod is not Ready yet", state(), db(), seen(aPod("db-0", startedOn("node1"))), map[string]string{}},
		{"a pod is Ready on another node", state(recorded("db-0", "node1")), db(), seen(aPod("db-0", readyOn("node2"))),
			map[string]string{"db-0": "node2"}},
		{"a pod starts on another node", state(recorded("db-0", "node1")), db(), seen(aPod("db-0", startedOn("node2"))),
			map[string]string{"db-0": "node1"}},
		{"a pod is away", state(recorded("db-0", "node1")), db(), seen(), map[string]string{"db-0": "node1"}},
		{"P6: a pod was Ready and gone before anybody recorded it", state(recorded("db-0", "node1")), db(),
			seen(gone).without(gone), map[string]string{"db-0": "node2"}},
		{"P6: its successor is there already", state(recorded("db-0", "node1")), db(), seen(gone, aPod("db-0")),
			map[string]string{"db-0": "node2"}},
		{"scaled down, the pod is there", state(recorded("db-2", "node1")), db(with(int64(1), "spec", "replicas")),
			seen(aPod("db-2", readyOn("node1"))), map[string]string{"db-2": "node1"}},
		{"scaled down, the pod is gone", state(recorded("db-0", "node2", "db-2", "node1")), db(with(int64(1), "spec", "replicas")),
			seen(), map[string]string{"db-0": "node2"}},
		{"scaled to nothing", state(recorded("db-0", "node2")), db(with(int64(0), "spec", "replicas")), seen(), map[string]string{}},
		{"scaled to nothing, WhenDeleted", state(recorded("db-0", "node2"), until(pps.WhenDeleted)),
			db(with(int64(0), "spec", "replicas")), seen(), map[string]string{"db-0": "node2"}},
		{"P2: the workload is gone, WhenDeleted", state(recorded("db-0", "node2"), until(pps.WhenDeleted)), nil, seen(), map[string]string{}},
		{"the workload is gone, its pods stay", state(recorded("db-0", "node2", "db-1", "node1")), nil,
			seen(aPod("db-0", startedOn("node2"))), map[string]string{"db-0": "node2"}},
		{"P2: the workload was made again before anybody looked", state(recorded("db-0", "node2"), until(pps.WhenDeleted)),
			remade(db()), seen(), map[string]string{}},
		{"P2: and has a pod that starts elsewhere", state(recorded("db-0", "node2")), remade(db()),
			seen(aPod("db-0", startedOn("node1"), ownedBy("set-2"), func(p *corev1.Pod) { p.CreationTimestamp = later })), map[string]string{}},
		{"P2: while a pod of the old one is still there", state(recorded("db-0", "node2")), remade(db()),
			seen(aPod("db-0", startedOn("node2"))), map[string]string{}},
		{"the workload was made again and adopts a pod", state(recorded("db-0", "node2")), remade(db()),
			seen(aPod("db-0", startedOn("node2"), ownedBy("set-2"))), map[string]string{"db-0": "node2"}},
		{"P3: ordinals begin at 5, a pod is away", state(recorded("db-5", "node1", "db-0", "node2")),
			db(with(int64(5), "spec", "ordinals", "start")), seen(), map[string]string{"db-5": "node1"}},
		{"a reserved ordinal", state(recorded("db-1", "node1", "db-3", "node2")),
			db(with([]any{int64(1)}, "spec", "reserveOrdinals")), seen(), map[string]string{"db-3": "node2"}},
		{"a record of another's pod", state(recorded("web-0", "node1")), db(), seen(), map[string]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			got := Status(tt.object, tt.workload, tt.pods.Of(targetOf(tt.object)), three().nodes)
			if diff := cmp.Diff(tt.want, places(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again := state(func(o *pps.PersistentPodState) { o.Spec, o.Status = tt.object.Spec, got })
			if second := Status(again, tt.workload, tt.pods.Of(targetOf(tt.object)), three().nodes); !same(got, second) {
				t.Errorf("looking again changes it: %s", cmp.Diff(got, second))
			}
		})
	}
}

// P15: the label's value changes, the node and the keys do not.
func TestP15ARecordFollowsTheLabelsOfItsNode(t *testing.T) {
	c := three()
	c["node1"][zone] = "z"
	for _, pods := range []*Sights{seen(aPod("db-0", readyOn("node1"))), seen()} {
		got := Status(state(recorded("db-0", "node1")), db(), pods.Of(targetOf(state())), c.nodes)
		want := map[string]string{hostname: "node1", zone: "z"}
		if diff := cmp.Diff(want, got.PodStates["db-0"].NodeTopologyLabels); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestTheZoneOfANodeThatIsGoneIsRemembered(t *testing.T) {
	c := three()
	delete(c, "node1")
	got := Status(state(recorded("db-0", "node1")), db(), nil, c.nodes)
	if diff := cmp.Diff(state(recorded("db-0", "node1")).Status.PodStates, got.PodStates); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLabelsOfOneNodeAreNotSaidOfAnother(t *testing.T) {
	c := three()
	delete(c, "node2")
	got := Status(state(recorded("db-0", "node1")), db(), seen(aPod("db-0", readyOn("node2"))).Of(targetOf(state())), c.nodes)
	if labels := got.PodStates["db-0"].NodeTopologyLabels; len(labels) > 0 {
		t.Errorf("node2 is said to have %v", labels)
	}
}

// P5: keys are compared with keys; P12: other keys, another record.
func TestP5AnnotationsAreRecordedByKey(t *testing.T) {
	pod := aPod("db-0", readyOn("node1"), annotated("a", "1"), annotated("b", "2"), annotated("c", "3"))
	o := state(keeps("a", "b", "absent"))
	o.Status = Status(o, db(), seen(pod).Of(targetOf(o)), three().nodes)
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, o.Status.PodStates["db-0"].Annotations); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if again := Status(o, db(), seen(pod).Of(targetOf(o)), three().nodes); !same(o.Status, again) {
		t.Error("a record that is up to date is made again")
	}
	annotate(pod, "a", "changed")
	if now := Status(o, db(), seen(pod).Of(targetOf(o)), three().nodes); now.PodStates["db-0"].Annotations["a"] != "changed" {
		t.Error("a changed annotation is not recorded")
	}
}

func TestSightsForgetWhatIsLongGone(t *testing.T) {
	pod := aPod("db-0", readyOn("node1"))
	s := seen(pod, aPod("db-1", readyOn("node1"))).without(pod)
	target := targetOf(state())
	s.Forget(began.Add(time.Hour))
	if len(s.Of(target)) != 2 {
		t.Error("forgotten too soon")
	}
	s.Forget(began.Add(2 * time.Hour))
	if _, there := s.Of(target)["db-0"]; there || len(s.Of(target)) != 1 {
		t.Errorf("left: %v", s.Of(target))
	}
	s.Miss(target, "db-1", "an earlier one", began)
	if !s.Of(target)["db-1"].Alive() {
		t.Error("a late end of an earlier pod ended its successor")
	}
}
