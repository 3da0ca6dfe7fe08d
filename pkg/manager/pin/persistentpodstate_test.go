package pin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/persistentpodstate"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// What a PersistentPodState and a reservation want of one pod is said once (docs/design.md,
// "Modes").
func TestPinAndPersistentPodState(t *testing.T) {
	host := corev1.LabelHostname
	zone := corev1.LabelTopologyZone
	at := func(hostname, in string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels = map[string]string{host: hostname, zone: in} }
	}
	home, other := node("node1.example.com", at("node1", "a")), node("node2.example.com", at("node2", "b"))
	byHost := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: host,
		Operator: corev1.NodeSelectorOpIn, Values: []string{"node1"}}}}
	byName := pinned(corev1.NodeSelectorTerm{}, home.Name)
	preferred := func(weight int32, t corev1.NodeSelectorTerm) corev1.PreferredSchedulingTerm {
		return corev1.PreferredSchedulingTerm{Weight: weight, Preference: t}
	}
	require := func(keys ...string) func(*pps.PersistentPodStateSpec) {
		return func(s *pps.PersistentPodStateSpec) { s.RequiredPersistentTopology = new(pps.Term(keys...)) }
	}
	prefers := func(weight int32, keys ...string) func(*pps.PersistentPodStateSpec) {
		return func(s *pps.PersistentPodStateSpec) {
			s.PreferredPersistentTopology = append(s.PreferredPersistentTopology,
				pps.PreferredTopologyTerm{Weight: weight, Preference: pps.Term(keys...)})
		}
	}
	for _, tt := range []struct {
		story     string
		mode      policy.PinMode
		topology  func(*pps.PersistentPodStateSpec)
		was       *corev1.Node // as the PersistentPodState has it
		selector  map[string]string
		required  []corev1.NodeSelectorTerm
		preferred []corev1.PreferredSchedulingTerm
		reason    pinReason
	}{
		{"prefer, host preferred", policy.PinPrefer, prefers(100, host), home, nil, nil,
			[]corev1.PreferredSchedulingTerm{preferred(100, byHost), preferred(100, byName)}, reserved},
		{"prefer, host required", policy.PinPrefer, require(host), home, map[string]string{host: "node1"}, nil,
			[]corev1.PreferredSchedulingTerm{preferred(100, byName)}, reserved},
		{"require, host preferred", policy.PinRequire, prefers(100, host), home, nil, []corev1.NodeSelectorTerm{byName},
			[]corev1.PreferredSchedulingTerm{preferred(100, byHost)}, reserved},
		{"require, zone required", policy.PinRequire, require(zone), home, map[string]string{zone: "a"},
			[]corev1.NodeSelectorTerm{byName}, nil, reserved},
		{"require, another zone required", policy.PinRequire, require(zone), other, map[string]string{zone: "b"}, nil,
			nil, nodeExcluded},
		{"prefer, another host preferred", policy.PinPrefer, prefers(100, host), other, nil, nil,
			[]corev1.PreferredSchedulingTerm{preferred(100,
				corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: host, Operator: corev1.NodeSelectorOpIn, Values: []string{"node2"}}}}),
				preferred(100, byName)}, reserved},
		{"none, host preferred", policy.PinNone, prefers(100, host), home, nil, nil,
			[]corev1.PreferredSchedulingTerm{preferred(100, byHost)}, notWanted},
	} {
		t.Run(tt.story, func(t *testing.T) {
			var o pps.PersistentPodState
			tt.topology(&o.Spec)
			memory := persistentpodstate.FormerState{PodState: pps.PodState{NodeName: tt.was.Name,
				NodeTopologyLabels: tt.was.Labels}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0"}}
			var decision decision
			for range 2 { // as the API server calls both again when another webhook has changed the pod
				memory.Required = persistentpodstate.Reset(pod)
				persistentpodstate.Inject(pod, &o, memory, []*corev1.Node{home, other})
				strip(pod)
				decision = decide(podFacts{Pod: pod, Wish: wish{Mode: tt.mode}, Scheduled: true, Recreated: true,
					Known: true, Target: pinTarget{Node: home.Name}, Node: home})
				apply(pod, decision)
			}
			if decision.Reason != tt.reason {
				t.Errorf("%s: %s", decision.Reason, decision.Text)
			}
			if diff := cmp.Diff(tt.selector, pod.Spec.NodeSelector, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("selector (-want +got):\n%s", diff)
			}
			var a corev1.NodeAffinity
			if pod.Spec.Affinity != nil {
				a = *pod.Spec.Affinity.NodeAffinity
			}
			var required []corev1.NodeSelectorTerm
			if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
				required = r.NodeSelectorTerms
			}
			if diff := cmp.Diff(tt.required, required); diff != "" {
				t.Errorf("required (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.preferred, a.PreferredDuringSchedulingIgnoredDuringExecution); diff != "" {
				t.Errorf("preferred (-want +got):\n%s", diff)
			}
		})
	}
}
