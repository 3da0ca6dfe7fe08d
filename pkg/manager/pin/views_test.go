package pin

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	var object T
	must.Succeed(t, yaml.UnmarshalStrict([]byte(text), &object))
	return &object
}

// maxView is the size of the largest view, in bytes.
const maxView = 8 << 10

// TestPodWithLongTexts has a user write as much into a pod as the API server accepts.
func TestPodWithLongTexts(t *testing.T) {
	long := strings.Repeat("é", 125<<10)
	for _, node := range []string{"node1", long} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", GenerateName: long,
			Labels: map[string]string{"a": long}, Annotations: map[string]string{policy.Annotation: "10m",
				policy.ReserveAs: "a", kube.AnnotationPinnedNode: node, kube.AnnotationPinReason: long,
				kube.AnnotationPinPatience: long, policy.ExpectedAddresses: long}},
			Status: corev1.PodStatus{NominatedNodeName: long, Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Reason: corev1.PodReasonUnschedulable, Message: long}}}}
		apply(p, decision{Mode: policy.PinRequire, Node: node})
		p.Annotations[kube.AnnotationPinReason] = long // by its user, afterwards
		for _, owners := range [][]metav1.OwnerReference{nil, {{Kind: long, Name: long, UID: types.UID(long),
			Controller: new(true)}}} {
			p.OwnerReferences = owners
			v := viewPod(p, nil)
			text := fmt.Sprintf("%+v", *v)
			if len(text) > maxView || !utf8.ValidString(text) || v.Patience != policy.DefaultPatience {
				t.Errorf("the view has %d bytes, and the patience is %s", len(text), v.Patience)
			}
			if want := strings.TrimPrefix(node, long); v.Sent != want || v.Pinned != want {
				t.Errorf("pinned to %.50q", v.Pinned)
			}
		}
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
    leasehold.dev/pin-reason: "Reserved: require node1", leasehold.dev/pin-patience: 10s}
  ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: s1, controller: true}]
spec:
  schedulerName: default-scheduler
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
    {matchFields: [{key: metadata.name, operator: In, values: [node1]}],
     matchExpressions: [{key: leasehold.dev/pinned-node, operator: DoesNotExist}]}, {}]}}}
status:
  phase: Pending
  nominatedNodeName: node1
  conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: no room,
    lastTransitionTime: "2026-11-21T12:00:00Z"}]
`)
	want := &podView{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1", ResourceVersion: "9"},
		Recreated:  true, Window: lease.Window(10 * time.Minute), Sent: "node1", Pinned: "node1",
		Patience: lease.Window(10 * time.Second), Reason: "Reserved: require node1", Nominated: true,
		Unschedulable: true, Message: "no room",
	}
	check.NoDiff(t, cmp.Diff(want, viewPod(waiting, nil), cmp.Transformer("UTC", time.Time.UTC)))
	waiting.Status.Conditions[0].Reason = "SchedulingGated"
	if viewPod(waiting, nil).Unschedulable {
		t.Error("no scheduler has tried it")
	}
	waiting.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].
		MatchExpressions = nil
	check.Equal(t, viewPod(waiting, nil).Pinned, "", "its user requires the node, and the pin does not")

	running := waiting.DeepCopy()
	running.Spec.NodeName = "node1"
	running.Status = *read[corev1.PodStatus](t, `
phase: Running
podIPs: [{ip: 10.0.0.7}, {ip: "fd00::7"}]
conditions:
- {type: PodScheduled, status: "True", lastTransitionTime: "2026-11-21T12:00:00Z"}
- {type: DisruptionTarget, status: "True", reason: EvictionByEvictionAPI}
`)
	want = &podView{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1", ResourceVersion: "9"},
		Node:       "node1", BoundAt: noon, Recreated: true, Window: lease.Window(10 * time.Minute), Sent: "node1",
		Evicted: true, Started: true, Addresses: "10.0.0.7,fd00::7",
	}
	check.NoDiff(t, cmp.Diff(want, viewPod(running, nil), cmp.Transformer("UTC", time.Time.UTC)))
	running.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NodeAffinity"}
	if v := viewPod(running, nil); !v.Rejected || !v.Failed || v.Started {
		t.Errorf("rejected by the kubelet: %+v", v)
	}
}

// The annotations of a pinned pod on one that is not retained, whose admission the webhook is not
// called for, say nothing.
func TestForgedAnnotations(t *testing.T) {
	for window, want := range map[string]string{"10": "node1", "0": "", "ten": ""} {
		p := ofStatefulSet(func(p *corev1.Pod) {
			p.Annotations[policy.Annotation] = window
			apply(p, decision{Mode: policy.PinRequire, Node: "node1"})
		})
		check.Equal(t, viewPod(p, nil).Pinned, want, "window", window)
	}
}
