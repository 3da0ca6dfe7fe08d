package control

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTrimNode(t *testing.T) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	want := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "u",
		Labels: map[string]string{"disk": "ssd"}},
		Spec: corev1.NodeSpec{Unschedulable: true,
			Taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}}
	n := want.DeepCopy()
	n.Annotations = map[string]string{"a": "b"}
	n.Status.Images = []corev1.ContainerImage{{Names: []string{"x"}}}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure})
	if diff := cmp.Diff(want, TrimNode(n)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
