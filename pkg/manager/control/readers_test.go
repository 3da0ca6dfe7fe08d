package control

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// One object never stops the others.
func TestReaders(t *testing.T) {
	fakeapi.Reader[*corev1.Node]{New: NewNodes, Kind: corev1.SchemeGroupVersion.WithKind("Node"), Good: &corev1.Node{}}.
		Test(t)
	fakeapi.Reader[*Reservation]{
		New:  func() *kube.Informer[*Reservation] { return NewReservations(viewReservation).Informer },
		Kind: ipam.GroupVersion.WithKind("IPReservation"), Good: &ipam.IPReservation{}}.Test(t)
}

// Of the labels of a node, those of Kubernetes are kept first if there are too many.
func TestNodeWithManyLabels(t *testing.T) {
	few := map[string]string{"a": "1", corev1.LabelHostname: "node1"}
	for name, value := range map[string]string{"many": "", "long": strings.Repeat("x", 63)} {
		n := &corev1.Node{}
		n.Labels = map[string]string{corev1.LabelHostname: "node1", corev1.LabelTopologyZone: "a"}
		for i := range 1024 {
			n.Labels[fmt.Sprint("a.example.com/", strings.Repeat("y", len(value)*3), i)] = value
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprint(i)})
		}
		got := TrimNode(n)
		if len(got.Labels) < 90 || len(got.Labels) > 512 || len(got.Spec.Taints) != maxTaints ||
			got.Labels[corev1.LabelHostname] != "node1" || got.Labels[corev1.LabelTopologyZone] != "a" {
			t.Errorf("%s: %d labels and %d taints are kept", name, len(got.Labels), len(got.Spec.Taints))
		}
	}
	if got := TrimNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: few}}); !maps.Equal(got.Labels, few) {
		t.Errorf("labels %v, want %v", got.Labels, few)
	}
}
