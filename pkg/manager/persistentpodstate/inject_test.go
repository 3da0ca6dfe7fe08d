package persistentpodstate

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/check"
)

// injectTwice modifies a pod according to its former state, and checks that doing so twice makes no
// difference.
func injectTwice(t *testing.T, pod *corev1.Pod, o *pps.PersistentPodState, c cluster) (reasons []string) {
	t.Helper()
	former, known := findFormer(o, pod.Name, nil, c.node)
	if !known {
		return nil
	}
	if c.node(former.NodeName) == nil {
		former.Lost = "node " + former.NodeName + " is gone"
	}
	_, reasons = inject(pod, o, former, c.all())
	again := pod.DeepCopy()
	former.Required = reset(again)
	inject(again, o, former, c.all())
	check.NoDiff(t, cmp.Diff(pod, again), "the second time makes a difference")
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

// TestResetKeepsSelectors has a user write the annotations of an injected pod. No selector that
// another webhook may have added is removed.
func TestResetKeepsSelectors(t *testing.T) {
	pod := aPod("db-0")
	pod.Spec.NodeSelector = map[string]string{"tenant": "a"}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{in(100, hostname, "node1")}}}
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationRequired, "tenant=a")
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, pps.AnnotationInjected, "db")
	before := pod.Spec.DeepCopy()
	check.Equal(t, reset(pod)["tenant"], "a", "required")
	check.NoDiff(t, cmp.Diff(before, &pod.Spec))
	check.Equal(t, len(pod.Annotations), 0, pod.Annotations)
}

func TestAnnotationsAreRestored(t *testing.T) {
	o := state(recorded("db-0", "node1"), keeps("cni/ip", "role", "absent"))
	s := o.Status.PodStates["db-0"]
	s.Annotations = map[string]string{"cni/ip": "10.0.0.1", "role": "leader", "not/asked": "x"}
	o.Status.PodStates["db-0"] = s
	pod := aPod("db-0", annotated("role", "from the template"))
	injectTwice(t, pod, o, three())
	want := map[string]string{"cni/ip": "10.0.0.1", "role": "from the template", pps.AnnotationInjected: "db",
		annotationRequired: zone + "=a"}
	check.NoDiff(t, cmp.Diff(want, pod.Annotations))
}

// The pod's own selectors also take precedence if they refer to another label than the injected
// one.
func TestOwnSelectorsOfOtherNodesTakePrecedence(t *testing.T) {
	named := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name",
							Operator: corev1.NodeSelectorOpIn,
							Values:   []string{name}}}}}}}}
		}
	}
	selects := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
	}
	disk := func(kind string) func(*corev1.Pod) { return selects("disk", kind) }
	zones := func(terms ...[]string) func(*corev1.Pod) { // each an operator and zones
		return func(p *corev1.Pod) {
			required := &corev1.NodeSelector{}
			for _, term := range terms {
				required.NodeSelectorTerms = append(required.NodeSelectorTerms, corev1.NodeSelectorTerm{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zone,
						Operator: corev1.NodeSelectorOperator(term[0]), Values: term[1:]}}})
			}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: required}}
		}
	}
	noZone := []string{"the pod's own selectors leave no node with " + zone + "=a"}
	c := cluster{
		"node1": {hostname: "node1", zone: "a", "rack": ""},
		"node2": {hostname: "node2", zone: "b", "disk": "ssd"},
		"node3": {hostname: "node3", zone: "a", "disk": "hdd"},
	}
	gone := maps.Clone(c)
	delete(gone, "node1")
	for _, tt := range []struct {
		name     string
		own      func(*corev1.Pod)
		cluster  cluster
		requires []string
		want     map[string]string // the injected labels
		reasons  []string
	}{
		{"the former node", named("node1"), c, []string{hostname, zone},
			map[string]string{hostname: "node1", zone: "a"}, nil},
		{"a label without a value", func(*corev1.Pod) {}, c, []string{"rack"}, map[string]string{"rack": ""}, nil},
		{"a label that the former node does not have", disk("ssd"), c, []string{hostname}, nil,
			[]string{"the pod's own selectors leave no node with " + hostname + "=node1"}},
		{"a label that only nodes of another zone have", disk("ssd"), c, []string{zone}, nil,
			noZone},
		{"a label that another node of the zone has", disk("hdd"), c, []string{zone, hostname},
			map[string]string{zone: "a"},
			[]string{"the pod's own selectors leave no node with " + hostname + "=node1"}},
		{"a label that no node has", disk("nvme"), c, []string{zone, hostname}, map[string]string{zone: "a"},
			[]string{"the pod's own selectors leave no node with " + hostname + "=node1"}},
		{"the name of a node in another zone", named("node2"), c, []string{zone}, nil,
			noZone},
		{"former node gone, zone has another", disk("ssd"), gone, []string{zone}, nil,
			noZone},
		{"former node gone, zone empty", disk("ssd"), cluster{"node2": c["node2"]}, []string{zone},
			map[string]string{zone: "a"}, nil},
		{"another zone", selects(zone, "b"), c, []string{zone}, nil, noZone},
		{"affinity to another zone", zones([]string{"In", "b", "c"}), c, []string{zone}, nil, noZone},
		{"affinity to not this zone, which has no nodes now", zones([]string{"NotIn", "a"}),
			cluster{"node2": c["node2"]}, []string{zone}, nil, noZone},
		{"one of two terms allows it", zones([]string{"In", "b"}, []string{"In", "a"}), c, []string{zone},
			map[string]string{zone: "a"}, nil},
		{"former node gone, its hostname is required", func(*corev1.Pod) {}, gone, []string{hostname, zone},
			map[string]string{zone: "a"}, []string{"node node1 is gone"}},
		{"own selector with the same value",
			func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{hostname: "node1"} }, c,
			[]string{hostname, zone}, map[string]string{zone: "a"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := aPod("db-0", tt.own)
			own := pod.DeepCopy()
			reasons := injectTwice(t, pod, state(recorded("db-0", "node1"), requires(tt.requires...), prefers()),
				tt.cluster)
			check.NoDiff(t, cmp.Diff(tt.reasons, reasons), "reasons")
			check.NoDiff(t, cmp.Diff(tt.want, requiredOf(pod.Annotations), cmpopts.EquateEmpty()), "injected")
			for key, value := range tt.want {
				if got, isSet := pod.Spec.NodeSelector[key]; !isSet || got != value {
					t.Errorf("node selector %v", pod.Spec.NodeSelector)
				}
			}
			before := maps.Clone(pod.Spec.NodeSelector)
			reset(pod)
			check.NoDiff(t, cmp.Diff(own.Annotations, pod.Annotations, cmpopts.EquateEmpty()), "after reset")
			check.NoDiff(t, cmp.Diff(before, pod.Spec.NodeSelector), "Reset changes the node selector")
		})
	}
}

func TestMissingLabelIsNotInjected(t *testing.T) {
	pod := aPod("db-0")
	o := state(recorded("db-0", "node3"), prefers(prefer100(100, zone), prefer100(50, zone, hostname),
		prefer100(0, hostname), prefer100(900, hostname))) // another CRD has no limits of the weight
	reasons := injectTwice(t, pod, o, three())
	check.Equal(t, len(pod.Spec.NodeSelector), 0, pod.Spec.NodeSelector)
	want := []corev1.PreferredSchedulingTerm{in(50, hostname, "node3"), in(1, hostname, "node3"),
		in(100, hostname, "node3")}
	check.NoDiff(t, cmp.Diff(want, preferred(pod)), "preferred")
	check.Slices(t, reasons, []string{"node node3 has no label " + zone}, "reasons")
	bare := aPod("db-0")
	o = state(recorded("db-0", "node3"), requires("rack"), prefers(prefer100(100, zone)))
	injectTwice(t, bare, o, three())
	if metav1.HasAnnotation(bare.ObjectMeta, pps.AnnotationInjected) {
		t.Error("a pod without an injection is annotated")
	}
}

func TestOwnPreferencesStay(t *testing.T) {
	own := in(7, "disk", "ssd")
	pod := aPod("db-0", func(p *corev1.Pod) {
		control.NodeAffinity(p).PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{own}
	})
	injectTwice(t, pod, state(recorded("db-0", "node1")), three())
	check.NoDiff(t, cmp.Diff([]corev1.PreferredSchedulingTerm{own, in(100, hostname, "node1")}, preferred(pod)))
}

// The selectors of a pod, of which users write as many as an object may have, are not compared with
// every node if they are many. Then they take precedence.
func TestManyOwnSelectors(t *testing.T) {
	of := func(count int) func(*corev1.Pod) {
		zones := make([]string, count-2) // with a term and a requirement
		for i := range zones {
			zones[i] = fmt.Sprint("z", i)
		}
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: zone, Operator: corev1.NodeSelectorOpNotIn, Values: zones}}}}}}}
		}
	}
	for count, want := range map[int][]string{maxOwn: nil, maxOwn + 1: {"the pod's own selectors have more than 1000 " +
		"requirements; none is added"}} {
		pod := aPod("db-0", of(count))
		got := injectTwice(t, pod, state(requires(hostname), recorded("db-0", "node1")), three())
		check.Slices(t, got, want, count, "requirements")
		check.Equal(t, pod.Spec.NodeSelector[hostname] == "node1", want == nil, count, pod.Spec.NodeSelector)
	}
	selects := map[string]string{}
	for i := range maxOwn + 1 {
		selects[fmt.Sprint("label", i)] = "x"
	}
	pod := aPod("db-0", func(p *corev1.Pod) { p.Spec.NodeSelector = selects })
	got := injectTwice(t, pod, state(requires(hostname), recorded("db-0", "node1")), three())
	check.Equal(t, len(got), 1, "many labels:", got)
}
