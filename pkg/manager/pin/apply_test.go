package pin

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/pkg/policy"
)

func TestRetained(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0",
			Annotations: map[string]string{policy.Annotation: "10"}}}
		change(p)
		return p
	}
	owned := func(kind string) func(*corev1.Pod) {
		yes := true
		return func(p *corev1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Controller: &yes}} }
	}
	tests := []struct {
		story string
		pod   *corev1.Pod
		want  bool
	}{
		{"a bare pod", pod(func(*corev1.Pod) {}), true},
		{"a StatefulSet's", pod(owned("StatefulSet")), true},
		{"an operator's", pod(owned("Database")), true},
		{"a DaemonSet's", pod(owned("DaemonSet")), false},
		{"a name that is made later", pod(func(p *corev1.Pod) { p.Name, p.GenerateName = "", "db-" }), false},
		{"placed by its user", pod(func(p *corev1.Pod) { p.Spec.NodeName = "node1" }), false},
		{"without an address of its own", pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), false},
		{"without a window", pod(func(p *corev1.Pod) { p.Annotations = nil }), false},
		{"with a window of zero", pod(func(p *corev1.Pod) { p.Annotations[policy.Annotation] = "0" }), false},
		{"with a window that is none", pod(func(p *corev1.Pod) { p.Annotations[policy.Annotation] = "ten" }), false},
		{"forever", pod(func(p *corev1.Pod) { p.Annotations[policy.Annotation] = "forever" }), true},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			if got := retained(tt.pod); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// anyPod draws what users may write where the pin writes as well.
func anyPod(t *rapid.T) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0"}}
	if rapid.Bool().Draw(t, "annotated") {
		p.Annotations = map[string]string{"a": "b"}
	}
	if rapid.Bool().Draw(t, "copied") {
		p.Annotations = map[string]string{"leasehold.dev/pinned-node": "node9", "leasehold.dev/pin-reason": "x",
			"leasehold.dev/expected-addresses": "y"}
		p.Labels = map[string]string{"leasehold.dev/retained": "no"}
	}
	for _, gate := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a.b/c", "leasehold.dev/nominate", "d.e/f"}),
		0, 3, rapid.ID).Draw(t, "gates") {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
	}
	if rapid.Bool().Draw(t, "selector") {
		p.Spec.NodeSelector = map[string]string{"disk": rapid.SampledFrom([]string{"ssd", "hdd"}).Draw(t, "disk")}
	}
	terms := rapid.IntRange(0, 3).Draw(t, "terms")
	if terms > 0 {
		required := &corev1.NodeSelector{}
		for range terms {
			var term corev1.NodeSelectorTerm
			if v := rapid.SampledFrom([]string{"", "ssd", "hdd"}).Draw(t, "expression"); v != "" {
				term.MatchExpressions = []corev1.NodeSelectorRequirement{{Key: "disk",
					Operator: corev1.NodeSelectorOpIn,
					Values:   []string{v}}}
			}
			if n := rapid.SampledFrom([]string{"", "node1", "node2"}).Draw(t, "field"); n != "" {
				term.MatchFields = []corev1.NodeSelectorRequirement{onNode(n)}
			}
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
		}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: required}}
	}
	if rapid.Bool().Draw(t, "preferred") {
		nodeAffinity(p).PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: 1},
			{Weight: preferWeight,
				Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{onNode("node1")}}}}
	}
	if rapid.Bool().Draw(t, "persistent") {
		a := nodeAffinity(p)
		a.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{
				Weight: preferWeight, Preference: corev1.NodeSelectorTerm{
					MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"host1"}}}}})
	}
	return p
}

func fits(t *rapid.T, p *corev1.Pod, n *corev1.Node) bool {
	fits, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n)
	if err != nil {
		t.Fatal(err)
	}
	return fits
}

// TestStrip has a user write the annotations of a pinned pod, of each mode. No requirement that
// another webhook may have added is removed.
func TestStrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := anyPod(t)
		mode := rapid.SampledFrom([]string{"nominate", "require", "prefer"}).Draw(t, "mode")
		node := rapid.SampledFrom([]string{"node1", "node2"}).Draw(t, "node")
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "leasehold.dev/pin-reason", "Reserved: "+mode+" "+node)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "leasehold.dev/pinned-node", node)
		before := pod.DeepCopy()
		strip(pod)
		before.Spec.SchedulingGates, pod.Spec.SchedulingGates = nil, nil
		if diff := cmp.Diff(before.Spec, pod.Spec); diff != "" {
			t.Fatalf("(-before +after):\n%s", diff)
		}
		if _, found := pod.Annotations["leasehold.dev/pinned-node"]; found {
			t.Fatal("the annotation is left")
		}
	})
}

func TestRequires(t *testing.T) {
	named := func(node string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{onNode(node)}}
	}
	disk := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "disk", Operator: corev1.NodeSelectorOpExists}}}
	type terms = []corev1.NodeSelectorTerm
	for name, c := range map[string]struct {
		terms terms
		want  bool
	}{
		"no term":                    {terms{}, false}, // the API server rejects it
		"the node":                   {terms{named("node1")}, true},
		"another node":               {terms{named("node2")}, false},
		"the node or another":        {terms{named("node1"), named("node2")}, false},
		"the node or a label":        {terms{named("node1"), disk}, false},
		"the node, or an empty term": {terms{named("node1"), {}}, true},
	} {
		p, required := &corev1.Pod{}, corev1.NodeSelector{NodeSelectorTerms: c.terms}
		nodeAffinity(p).RequiredDuringSchedulingIgnoredDuringExecution = &required
		if got := requires(p, "node1"); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if requires(&corev1.Pod{}, "node1") {
		t.Error("a pod without affinity: true, want false")
	}
}

// TestApply proves that a decision takes nothing away that a user wrote, that a required pod can
// run on its node alone, that the other modes exclude no node, and that a second call of the same
// admission changes nothing.
func TestApply(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		user := anyPod(t)
		strip(user)
		pod := user.DeepCopy()
		mode := rapid.SampledFrom([]policy.PinMode{policy.PinNominate, policy.PinRequire, policy.PinPrefer,
			policy.PinNone}).Draw(t, "mode")
		v := decision{Mode: mode, Node: "node1", Hostname: "host1", Addresses: "10.0.0.7", Reason: reserved,
			Text: string(mode) + " node1"}
		apply(pod, v)

		again := pod.DeepCopy()
		strip(again)
		apply(again, v)
		if diff := cmp.Diff(pod, again); diff != "" {
			t.Fatalf("a second call changes it (-first +second):\n%s", diff)
		}
		for _, name := range []string{"node1", "node2"} {
			for _, disk := range []string{"ssd", "hdd"} {
				n := node(name)
				n.Labels["disk"] = disk
				want := fits(t, user, n) && (mode != policy.PinRequire || name == "node1")
				if got := fits(t, pod, n); got != want {
					t.Fatalf("%s fits on %s with %s: %t, want %t", mode, name, disk, got, want)
				}
			}
		}
		if requires(pod, "node1") != (mode == policy.PinRequire || requires(user, "node1")) {
			t.Fatalf("%s: requires says %t", mode, requires(pod, "node1"))
		}
		others := append([]corev1.PodSchedulingGate{}, user.Spec.SchedulingGates...)
		if mode == policy.PinNominate {
			others = append(others, corev1.PodSchedulingGate{Name: "leasehold.dev/nominate"})
		}
		if diff := cmp.Diff(others, append([]corev1.PodSchedulingGate{}, pod.Spec.SchedulingGates...)); diff != "" {
			t.Fatalf("gates (-want +got):\n%s", diff)
		}
		if pod.Labels["leasehold.dev/retained"] != "true" ||
			!strings.HasPrefix(pod.Annotations["leasehold.dev/pin-reason"], v.String()) {
			t.Fatalf("labels %v, annotations %v", pod.Labels, pod.Annotations)
		}
		if _, said := pod.Annotations["leasehold.dev/pinned-node"]; said != (mode != policy.PinNone) {
			t.Fatalf("annotations %v", pod.Annotations)
		}
	})
}
