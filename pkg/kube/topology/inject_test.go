package topology

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"pgregory.net/rapid"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/meta"
)

// inject recalls a pod and binds it; it checks that doing so twice is as doing it once.
func inject(t *testing.T, pod *corev1.Pod, o *pps.PersistentPodState, last *Seen, c cluster, release bool) (reasons []string) {
	t.Helper()
	m, known := Recall(o, pod.Name, last, c.nodes)
	if !known {
		return nil
	}
	_, reasons = Inject(pod, o, m, release)
	again := pod.DeepCopy()
	Inject(again, o, m, release)
	if diff := cmp.Diff(pod, again); diff != "" {
		t.Errorf("twice is not as once:\n%s", diff)
	}
	return reasons
}

func preferred(pod *corev1.Pod) []corev1.PreferredSchedulingTerm {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
}

func in(weight int32, labels ...string) corev1.PreferredSchedulingTerm {
	t := corev1.PreferredSchedulingTerm{Weight: weight}
	for i := 0; i < len(labels); i += 2 {
		t.Preference.MatchExpressions = append(t.Preference.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: labels[i], Operator: corev1.NodeSelectorOpIn, Values: labels[i+1 : i+2]})
	}
	return t
}

func prefer100(weight int32, keys ...string) pps.PreferredTopologyTerm {
	return pps.PreferredTopologyTerm{Weight: weight, Preference: pps.Term(keys...)}
}

func TestInject(t *testing.T) {
	pod := aPod("db-0")
	reasons := inject(t, pod, state(recorded("db-0", "node1")), nil, three(), true)
	if len(reasons) > 0 {
		t.Errorf("reasons %q", reasons)
	}
	if diff := cmp.Diff(map[string]string{zone: "a"}, pod.Spec.NodeSelector); diff != "" {
		t.Errorf("required (-want +got):\n%s", diff)
	}
	// The manual's third step.
	if diff := cmp.Diff([]corev1.PreferredSchedulingTerm{in(100, hostname, "node1")}, preferred(pod)); diff != "" {
		t.Errorf("preferred (-want +got):\n%s", diff)
	}
	if got := pod.Annotations[pps.AnnotationInjected]; got != "db" {
		t.Errorf("the mark is %q", got)
	}
}

func TestAPodThatIsNotKnownIsLeftAlone(t *testing.T) {
	pod, before := aPod("db-1"), (*corev1.Pod)(nil)
	before = pod.DeepCopy()
	inject(t, pod, state(recorded("db-0", "node1")), nil, three(), true)
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestP1AHostnameThatIsGoneBindsNobody(t *testing.T) {
	c := three()
	delete(c, "node1")
	o := state(recorded("db-0", "node1"), requires(hostname))
	pod := aPod("db-0")
	reasons := inject(t, pod, o, nil, c, true)
	if len(pod.Spec.NodeSelector) > 0 || len(preferred(pod)) > 0 {
		t.Errorf("bound to %v, %v", pod.Spec.NodeSelector, preferred(pod))
	}
	if !slices.Equal(reasons, []string{"node node1 is gone"}) || pod.Annotations[meta.AnnotationTopologyReason] != "node node1 is gone" {
		t.Errorf("reasons %q, annotated %q", reasons, pod.Annotations[meta.AnnotationTopologyReason])
	}
	waits := aPod("db-0")
	inject(t, waits, o, nil, c, false)
	if waits.Spec.NodeSelector[hostname] != "node1" {
		t.Errorf("switched off, it is bound to %v", waits.Spec.NodeSelector)
	}
	zoned := aPod("db-0")
	inject(t, zoned, state(recorded("db-0", "node1"), requires(hostname, zone)), nil, c, true)
	if diff := cmp.Diff(map[string]string{zone: "a"}, zoned.Spec.NodeSelector); diff != "" {
		t.Errorf("the zone is still there (-want +got):\n%s", diff)
	}
}

func TestP4AnnotationsAreRestored(t *testing.T) {
	o := state(recorded("db-0", "node1"), keeps("cni/ip", "role", "absent"))
	s := o.Status.PodStates["db-0"]
	s.Annotations = map[string]string{"cni/ip": "10.0.0.1", "role": "leader", "not/asked": "x"}
	o.Status.PodStates["db-0"] = s
	pod := aPod("db-0", annotated("role", "from the template"))
	inject(t, pod, o, nil, three(), true)
	want := map[string]string{"cni/ip": "10.0.0.1", "role": "from the template", pps.AnnotationInjected: "db"}
	if diff := cmp.Diff(want, pod.Annotations); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestP6WhatWasSeenLastCountsBeforeItIsRecorded(t *testing.T) {
	target := targetOf(state())
	moved := aPod("db-0", startedOn("node2"))
	tests := []struct {
		story string
		on    *pps.PersistentPodState
		seen  *Sights
		want  string
	}{
		{"recreated before it was recorded", state(), seen(aPod("db-0", readyOn("node2"))), "node2"},
		{"moved, and gone before it was Ready", state(recorded("db-0", "node1")), seen(moved).without(moved), "node2"},
		{"assigned only, nothing else is known", state(), seen(aPod("db-0", assignedTo("node2"))), "node2"},
		{"assigned only, and was Ready before", state(recorded("db-0", "node1")), seen(aPod("db-0", assignedTo("node2"))), "node1"},
		{"assigned elsewhere after it had run", state(), seen(aPod("db-0", readyOn("node1")), aPod("db-0", assignedTo("node2"))), "node1"},
		{"the same name of another workload", state(recorded("db-0", "node1")),
			seen(aPod("db-0", readyOn("node2"), ownedBy("set-0"))), "node1"},
	}
	for _, tt := range tests {
		m, known := Recall(tt.on, "db-0", tt.seen.Last(target, "set-1", "db-0"), three().nodes)
		if !known || m.NodeName != tt.want || m.NodeTopologyLabels[hostname] != tt.want {
			t.Errorf("%s: %s with %v, want %s", tt.story, m.NodeName, m.NodeTopologyLabels, tt.want)
		}
	}
}

func TestP9TheUsersSelectorsWin(t *testing.T) {
	selector := func(terms ...corev1.NodeSelectorTerm) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
		}
	}
	zoneIs := func(op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "disk", Operator: corev1.NodeSelectorOpExists}, {Key: zone, Operator: op, Values: values}}}
	}
	for _, tt := range []struct {
		story string
		own   func(*corev1.Pod)
		want  string // the zone in the pod's node selector
		why   bool
	}{
		{"none", func(*corev1.Pod) {}, "a", false},
		{"another zone", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{zone: "b"} }, "b", true},
		{"the same zone", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{zone: "a"} }, "a", false},
		{"another label", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }, "a", false},
		{"affinity to another zone", selector(zoneIs(corev1.NodeSelectorOpIn, "b", "c")), "", true},
		{"affinity to two zones", selector(zoneIs(corev1.NodeSelectorOpIn, "a", "b")), "a", false},
		{"affinity to not this zone", selector(zoneIs(corev1.NodeSelectorOpNotIn, "a")), "", true},
		{"one of two terms allows it", selector(zoneIs(corev1.NodeSelectorOpIn, "b"), zoneIs(corev1.NodeSelectorOpIn, "a")), "a", false},
		{"affinity to a node's name", selector(corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"node1"}}}}), "a", false},
	} {
		t.Run(tt.story, func(t *testing.T) {
			pod := aPod("db-0", tt.own)
			reasons := inject(t, pod, state(recorded("db-0", "node1")), nil, three(), true)
			if got := pod.Spec.NodeSelector[zone]; got != tt.want || (len(reasons) > 0) != tt.why {
				t.Errorf("zone %q, reasons %q", got, reasons)
			}
			if tt.why && !strings.Contains(pod.Annotations[meta.AnnotationTopologyReason], "topology.kubernetes.io/zone=a") {
				t.Errorf("annotated %q", pod.Annotations[meta.AnnotationTopologyReason])
			}
			if len(preferred(pod)) != 1 {
				t.Errorf("preferred %v", preferred(pod))
			}
		})
	}
}

func TestP10NoWeightIsRefusedByTheAPIServer(t *testing.T) {
	pod := aPod("db-0")
	inject(t, pod, state(recorded("db-0", "node1"), prefers(prefer100(0, hostname), prefer100(1000, zone))), nil, three(), true)
	want := []corev1.PreferredSchedulingTerm{in(1, hostname, "node1"), in(100, zone, "a")}
	if diff := cmp.Diff(want, preferred(pod)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestP13ALabelThatTheNodeDidNotHaveIsNotInjected(t *testing.T) {
	pod := aPod("db-0")
	o := state(recorded("db-0", "node3"), prefers(prefer100(100, zone), prefer100(50, zone, hostname)))
	reasons := inject(t, pod, o, nil, three(), true)
	if len(pod.Spec.NodeSelector) > 0 {
		t.Errorf("required %v", pod.Spec.NodeSelector)
	}
	if diff := cmp.Diff([]corev1.PreferredSchedulingTerm{in(50, hostname, "node3")}, preferred(pod)); diff != "" {
		t.Errorf("an empty term, or a label of no node (-want +got):\n%s", diff)
	}
	if !slices.Equal(reasons, []string{"node node3 has no label " + zone}) {
		t.Errorf("reasons %q", reasons)
	}
	bare := aPod("db-0")
	o = state(recorded("db-0", "node3"), requires("rack"), prefers(prefer100(100, zone)))
	inject(t, bare, o, nil, three(), true)
	if has(bare.Annotations, pps.AnnotationInjected) {
		t.Error("a pod that nothing was injected into is marked")
	}
}

func TestTheUsersPreferencesStay(t *testing.T) {
	own := in(7, "disk", "ssd")
	pod := aPod("db-0", func(p *corev1.Pod) { prefer(p, own) })
	inject(t, pod, state(recorded("db-0", "node1")), nil, three(), true)
	if diff := cmp.Diff([]corev1.PreferredSchedulingTerm{own, in(100, hostname, "node1")}, preferred(pod)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestWhatIsRequiredIsNeverImpossible proves for pods with selectors of their own: if they took the node before, they
// take it with what is injected, and nothing is injected that contradicts them.
func TestWhatIsRequiredIsNeverImpossible(t *testing.T) {
	labels := []string{"a", "b"}
	ops := []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists}
	rapid.Check(t, func(t *rapid.T) {
		pod := aPod("db-0")
		var terms []corev1.NodeSelectorTerm
		for range rapid.IntRange(0, 2).Draw(t, "terms") {
			r := corev1.NodeSelectorRequirement{
				Key:      rapid.SampledFrom([]string{zone, hostname}).Draw(t, "key"),
				Operator: rapid.SampledFrom(ops).Draw(t, "operator")}
			if r.Operator != corev1.NodeSelectorOpExists {
				r.Values = []string{rapid.SampledFrom(labels).Draw(t, "value")}
			}
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{r}})
		}
		if len(terms) > 0 {
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
		}
		if rapid.Bool().Draw(t, "selector") {
			pod.Spec.NodeSelector = map[string]string{zone: rapid.SampledFrom(labels).Draw(t, "zone")}
		}
		node := &corev1.Node{}
		node.Labels = map[string]string{hostname: "a", zone: rapid.SampledFrom(labels).Draw(t, "its zone")}
		fits := func() bool {
			ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
			return ok && err == nil
		}
		before, own := fits(), maps.Clone(pod.Spec.NodeSelector)
		o := state(requires(zone, hostname))
		Inject(pod, o, Memory{PodState: pps.PodState{NodeName: "a", NodeTopologyLabels: node.Labels}}, true)
		if before && !fits() {
			t.Fatalf("the pod took %v, and no longer does: %v", node.Labels, pod.Spec.NodeSelector)
		}
		for key, value := range pod.Spec.NodeSelector {
			if !has(own, key) && excludes(pod, key, value) {
				t.Fatalf("%s=%s contradicts the pod", key, value)
			}
		}
	})
}
