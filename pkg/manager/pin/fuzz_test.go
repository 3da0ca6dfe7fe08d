package pin

import (
	"encoding/json"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/reservations"
)

// FuzzAdmission has users write any pod, and nodes any reservation of it. Nothing panics, and no
// selector of the pod is removed.
func FuzzAdmission(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"db-0","annotations":{"io.kubernetes.cri/reserved-ip-duration":"10",`+
		`"leasehold.dev/pin":"require","leasehold.dev/pinned-node":"node1","leasehold.dev/pin-reason":`+
		`"Reserved: require node1"}},"spec":{"nodeSelector":{"a":"b"},"schedulingGates":[{"name":`+
		`"a.b/c"}],"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":`+
		`{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["node1"]}]},{}]}}}}}`),
		[]byte(`{"metadata":{"namespace":"db","name":"r"},"spec":{"podName":"db-0","nodeName":"node1",`+
			`"nodeUID":"uid-1"},`+
			`"status":{"id":"00000000000000a1","state":"Held","window":"10m","heldUntil":"2026-11-21T12:01:00Z"}}`))
	f.Add([]byte(`{}`), []byte(`{}`))
	f.Fuzz(func(t *testing.T, object, published []byte) {
		var pod corev1.Pod
		var r ipam.IPReservation
		if json.Unmarshal(object, &pod) != nil || json.Unmarshal(published, &r) != nil {
			return
		}
		r.Namespace = "db"
		clock := noon
		w := webhookOf(clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock, reservations.View(&r)))
		before := pod.DeepCopy()
		review := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "db"}}
		for range 2 {
			if err := w.pin(t.Context(), review, &pod); err != nil {
				t.Fatal(err)
			}
		}
		for key, value := range before.Spec.NodeSelector {
			if pod.Spec.NodeSelector[key] != value {
				t.Errorf("the selector %s is removed", key)
			}
		}
		if was, is := terms(before), terms(&pod); is < was {
			t.Errorf("%d of %d requirements are left", is, was)
		}
		v := viewPod(&pod, nil)
		w.cluster.add(t, v)
		notPossible(v)
		w.cluster.keptElsewhere(v)
		instance{}.after(v, noon)
	})
}

// terms returns the number of requirements of a pod for its node.
func terms(p *corev1.Pod) (n int) {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil ||
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return 0
	}
	for _, t := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		n += len(t.MatchExpressions) + len(t.MatchFields)
	}
	return n
}
