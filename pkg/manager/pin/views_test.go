package pin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	var object T
	if err := yaml.UnmarshalStrict([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	return &object
}

func TestViewReservation(t *testing.T) {
	object := read[ipam.IPReservation](t, `
metadata:
  namespace: db
  name: db-0-5f1c9a02
  uid: r1
  resourceVersion: "7"
  generation: 3
  labels: {a: b}
  annotations: {leasehold.dev/pin-abandoned: 00000000000000a1}
  managedFields:
  - {manager: leasehold-agent, operation: Apply, subresource: status, time: "2026-11-21T11:50:05Z"}
  - {manager: kubectl-patch, operation: Update, time: "2026-11-21T11:55:00Z"}
spec: {podName: db-0, nodeName: node1, nodeUID: n1, release: 00000000000000a1}
status:
  id: 00000000000000a1
  state: Held
  addresses: [{network: cbr0, interface: eth0, address: 10.0.0.7}, {network: cbr0, interface: eth0, address: "fd00::7"}]
  podUID: u1
  window: 10m0s
  confirmed: true
  heldUntil: "2026-11-21T12:00:00Z"
`)
	want := &reservation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0-5f1c9a02", UID: "r1", ResourceVersion: "7",
			Generation: 3},
		Pod: "db-0", Node: "node1", NodeUID: "n1", ID: "00000000000000a1", PodUID: "u1",
		Addresses: "10.0.0.7,fd00::7", Until: noon, Written: noon.Add(5*time.Second - 10*time.Minute),
		Window: lease.Window(10 * time.Minute), HasRelease: true, Releasing: true, Abandoned: true, Confirmed: true,
	}
	if diff := cmp.Diff(want, viewReservation(object), cmp.Transformer("UTC", time.Time.UTC)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	object.Annotations["leasehold.dev/pin-abandoned"] = "00000000000000a0"
	object.Spec.Release = "00000000000000a0"
	object.Status = ipam.IPReservationStatus{ID: "00000000000000a1", State: ipam.Bound, AddressList: "10.0.0.7",
		Window: "forever"}
	v := viewReservation(object)
	if !v.Bound || v.Releasing || v.Abandoned || v.Window != lease.Forever || v.Addresses != "10.0.0.7" ||
		!v.Until.IsZero() {
		t.Errorf("marks of another lease count: %+v", v)
	}
}

func TestViewPod(t *testing.T) {
	waiting := read[corev1.Pod](t, `
metadata:
  namespace: db
  name: db-0
  uid: u1
  resourceVersion: "9"
  labels: {leasehold.dev/retained: "true"}
  annotations: {io.kubernetes.cri/reserved-ip-duration: "10", leasehold.dev/pinned-node: node1,
    leasehold.dev/pin-reason: "Reserved: require node1"}
  ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: s1, controller: true}]
  managedFields:
  - {manager: kube-scheduler, operation: Update, subresource: status, fieldsType: FieldsV1,
     fieldsV1: {"f:status": {"f:conditions": {}}}}
  - {manager: leasehold-manager, operation: Update, subresource: status, fieldsType: FieldsV1,
     fieldsV1: {"f:status": {"f:nominatedNodeName": {}}}}
spec:
  schedulerName: default-scheduler
  schedulingGates: [{name: a.b/c}, {name: leasehold.dev/nominate}]
  tolerations: [{operator: Exists}]
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
    {matchFields: [{key: metadata.name, operator: In, values: [node1]}]}]}}}
status:
  phase: Pending
  nominatedNodeName: node1
  conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: no room,
    lastTransitionTime: "2026-11-21T12:00:00Z"}]
`)
	want := &podView{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1", ResourceVersion: "9"},
		Controlled: true, Window: lease.Window(10 * time.Minute), Gated: true, Gates: 2, Pinned: "node1",
		Reason:   "Reserved: require node1",
		Required: true, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, Nominated: "node1",
		NominatedByUs: true,
		NotScheduled:  "Unschedulable", Unschedulable: true, UnschedulableWhy: "no room",
	}
	if diff := cmp.Diff(want, viewPod(waiting), cmp.Transformer("UTC", time.Time.UTC)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	waiting.Annotations["leasehold.dev/pin-reason"] = "Reserved: nominate node1"
	if viewPod(waiting).Required {
		t.Error("its user requires the node, and we do not")
	}

	waiting.ManagedFields[1].Manager = "kube-scheduler"
	waiting.Status.Conditions[0].Reason = "SchedulingGated"
	if v := viewPod(waiting); v.NominatedByUs || v.NotScheduled != "" {
		t.Errorf("the scheduler has nominated it, and not tried it since: %+v", v)
	}
	never := corev1.PreemptNever
	waiting.Spec.PreemptionPolicy = &never
	if !viewPod(waiting).NeverPreempts {
		t.Error("it preempts others")
	}
	waiting.Spec.PreemptionPolicy = nil

	running := waiting.DeepCopy()
	running.Spec.NodeName, running.Spec.SchedulingGates = "node1", nil
	running.Status = *read[corev1.PodStatus](t, `
phase: Running
podIPs: [{ip: 10.0.0.7}, {ip: "fd00::7"}]
conditions:
- {type: PodScheduled, status: "True", lastTransitionTime: "2026-11-21T12:00:00Z"}
- {type: DisruptionTarget, status: "True", reason: EvictionByEvictionAPI}
`)
	want = &podView{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1", ResourceVersion: "9"},
		Node:       "node1", BoundAt: noon, Controlled: true, Window: lease.Window(10 * time.Minute), Pinned: "node1",
		Evicted: true, Started: true, Addresses: "10.0.0.7,fd00::7",
	}
	if diff := cmp.Diff(want, viewPod(running), cmp.Transformer("UTC", time.Time.UTC)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestTrimNode(t *testing.T) {
	n := node("node1", cordoned, tainted("NoSchedule"))
	n.Annotations = map[string]string{"a": "b"}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"x"}}}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure})
	trimmed, err := trimNode(n)
	if err != nil {
		t.Fatal(err)
	}
	got := trimmed.(*corev1.Node)
	if diff := cmp.Diff(node("node1", cordoned, tainted("NoSchedule")), got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestForgedAnnotations has the annotations of a pinned pod on one that is not retained, whose
// admission the webhook is not called for.
func TestForgedAnnotations(t *testing.T) {
	for window, want := range map[string]string{"10": "node1", "0": "", "ten": ""} {
		p := read[corev1.Pod](t, `
metadata:
  labels: {leasehold.dev/retained: "true"}
  annotations: {io.kubernetes.cri/reserved-ip-duration: "`+window+`", leasehold.dev/pinned-node: node1,
    leasehold.dev/pin-reason: "Reserved: require node1"}
spec:
  schedulingGates: [{name: leasehold.dev/nominate}]
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
    {matchFields: [{key: metadata.name, operator: In, values: [node1]}]}]}}}
`)
		v := viewPod(p)
		if v.Pinned != want || v.Required != (want != "") || (v.Reason != "") != (want != "") {
			t.Errorf("window %q: pinned to %q, required %t, reason %q", window, v.Pinned, v.Required, v.Reason)
		}
		if what, _, _ := next(v, podProgress{}.observe(v, noon), true, noon); (what == nominate) != (want != "") {
			t.Errorf("window %q: the next step is %v", window, what)
		}
	}
}
