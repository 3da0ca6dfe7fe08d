package retention

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/check"
)

func controlled(apiVersion, kind, name string) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, Controller: &yes}}
}

func TestPodOf(t *testing.T) {
	name := kube.Name{Namespace: "db", Name: "db-0"}
	meta := metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1"}
	with := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: *meta.DeepCopy()}
		p.Spec.Containers = []corev1.Container{{Name: "big"}}
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "big"}}
		change(p)
		return p
	}
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		want Pod
	}{
		{"plain", with(func(*corev1.Pod) {}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true}},
		{"ready, of a StatefulSet", with(func(p *corev1.Pod) {
			p.OwnerReferences = controlled("apps/v1", "StatefulSet", "db")
			p.OwnerReferences[0].UID = "s1"
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "big"}}
		}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true, Ready: true,
			Set: "s1"}},
		{"of a cluster-scoped kind of the core group",
			with(func(p *corev1.Pod) { p.OwnerReferences = controlled("v1", "Node", "a") }),
			Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true}},
		{"started, with two addresses", with(func(p *corev1.Pod) {
			p.Status.StartTime = &metav1.Time{Time: time.Unix(1_700_000_000, 0)}
			p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.2"}, {IP: "fd00::2"}}
		}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true, Started: time.Unix(1_700_000_000, 0),
			IPs: []string{"10.0.0.2", "fd00::2"}}},
		{"static", with(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"kubernetes.io/config.hash": "h1", "kubernetes.io/config.mirror": "h1"}
		}), Pod{Name: name, UID: "h1", ObjectUID: "u1", Expected: true}},
		{"a hash without the mirror annotation", with(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"kubernetes.io/config.hash": "h1"}
		}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true}},
		{"with host network", with(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), Pod{Name: name, UID: "u1",
			ObjectUID: "u1"}},
		{"succeeded", with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), Pod{Name: name, UID: "u1",
			ObjectUID: "u1"}},
		{"terminating", with(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), Pod{Name: name, UID: "u1",
			ObjectUID: "u1", Deleting: true}},
	} {
		check.NoDiff(t, cmp.Diff(c.want, PodOf(c.pod)), c.name)
	}
}

// TestPodWithLongTexts has a user write as much into a pod as the API server accepts.
func TestPodWithLongTexts(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	for _, window := range []string{"10", strings.Repeat("1ns", 20<<10)} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u1", OwnerReferences: controlled(
			"apps/"+long, "StatefulSet", "db"), Annotations: map[string]string{policy.Annotation: window,
			policy.ReserveAs: long, kubeletHash: long, mirrorPod: long}, Labels: map[string]string{"a": long}}}
		got := PodOf(p)
		if size := len(fmt.Sprintf("%#v", got)); size > 1<<10 || got.UID != "u1" || got.Invalid == "" {
			t.Errorf("the view has %d bytes, the UID %.10s, and is invalid because %q", size, got.UID, got.Invalid)
		}
		for _, change := range []func(*metav1.OwnerReference){
			func(o *metav1.OwnerReference) { o.UID = types.UID(long) },
			func(o *metav1.OwnerReference) { o.Name = long },
			func(o *metav1.OwnerReference) { o.Kind = long },
		} {
			p.OwnerReferences = controlled("apps/v1", "StatefulSet", "db")
			p.Annotations = map[string]string{policy.Annotation: "forever"}
			change(&p.OwnerReferences[0])
			if got := PodOf(p); got.Owner != "" || got.Set != "" {
				t.Errorf("the view has an owner: %.100v", got.Owner)
			}
		}
	}
}
