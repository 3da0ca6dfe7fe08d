package nodepods

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube/live"
)

func controlled(apiVersion, kind, name string) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, Controller: &yes}}
}

func TestWhatMattersOfAPod(t *testing.T) {
	name := live.Name{Namespace: "db", Name: "db-0"}
	meta := metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1"}
	with := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: *meta.DeepCopy()}
		p.Spec.Containers = []corev1.Container{{Name: "big"}}
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "big"}}
		change(p)
		return p
	}
	for _, c := range []struct {
		story string
		pod   *corev1.Pod
		want  Pod
	}{
		{"plain", with(func(*corev1.Pod) {}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true}},
		{"asks", with(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"io.kubernetes.cri/reserved-ip-duration": "", "other": "big"}
		}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true, Asks: true}},
		{"ready, of a StatefulSet", with(func(p *corev1.Pod) {
			p.OwnerReferences = controlled("apps/v1", "StatefulSet", "db")
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: "big"}}
		}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true, Ready: true, Owner: Owner{"apps", "StatefulSet", "db"}}},
		{"of the core group", with(func(p *corev1.Pod) { p.OwnerReferences = controlled("v1", "ReplicationController", "rc") }),
			Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true, Owner: Owner{"", "ReplicationController", "rc"}}},
		{"static", with(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"kubernetes.io/config.hash": "h1", "kubernetes.io/config.mirror": "h1"}
		}), Pod{Name: name, UID: "h1", ObjectUID: "u1", Expected: true}},
		{"a hash that is no mirror's", with(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"kubernetes.io/config.hash": "h1"}
		}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true}},
		{"with a volume of its own", with(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "tmp"}, {Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}}}
		}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true, OwnClaim: true}},
		{"with a volume of everybody's", with(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db"}}}}
		}), Pod{Name: name, UID: "u1", ObjectUID: "u1", Expected: true}},
		{"on the host's network", with(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), Pod{Name: name, UID: "u1", ObjectUID: "u1"}},
		{"done", with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), Pod{Name: name, UID: "u1", ObjectUID: "u1"}},
		{"on its way out", with(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), Pod{Name: name, UID: "u1", ObjectUID: "u1"}},
	} {
		if diff := cmp.Diff(c.want, Of(c.pod)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.story, diff)
		}
		strip(c.pod)
		if diff := cmp.Diff(c.want, Of(c.pod)); diff != "" {
			t.Errorf("%s, stripped (-want +got):\n%s", c.story, diff)
		}
		if c.pod.ManagedFields != nil || c.pod.Spec.Containers != nil {
			t.Errorf("%s: kept more than it should", c.story)
		}
	}
}
