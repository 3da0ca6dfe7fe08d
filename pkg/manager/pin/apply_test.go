package pin

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
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
			check.Equal(t, retained(tt.pod), tt.want)
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
		if p.Spec.Affinity == nil {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		}
		p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{
			{Weight: 1}, {Weight: preferWeight, Preference: corev1.NodeSelectorTerm{
				MatchFields: []corev1.NodeSelectorRequirement{onNode("node1")}}}}
	}
	return p
}

// emptyAffinity makes an affinity that says nothing equal to none.
var emptyAffinity = cmp.Transformer("affinity", func(a *corev1.Affinity) (out corev1.NodeAffinity) {
	if a != nil && a.NodeAffinity != nil {
		out = *a.NodeAffinity
	}
	return out
})

func fits(t *rapid.T, p *corev1.Pod, n *corev1.Node) bool {
	fits, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n)
	must.Succeed(t, err)
	return fits
}

// A user writes the annotations of a pinned pod. No requirement that another webhook may have added
// is removed.
func TestStripForgedAnnotations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := anyPod(t)
		mode := rapid.SampledFrom([]string{"require", "prefer"}).Draw(t, "mode")
		node := rapid.SampledFrom([]string{"node1", "node2"}).Draw(t, "node")
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "leasehold.dev/pin-reason", "Reserved: "+mode+" "+node)
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "leasehold.dev/pinned-node", node)
		before := pod.DeepCopy()
		strip(pod)
		check.NoDiff(t, cmp.Diff(before.Spec, pod.Spec))
		if _, found := pod.Annotations["leasehold.dev/pinned-node"]; found {
			t.Fatal("the annotation is left")
		}
	})
}

// What is removed from a term is the marker, and with it the name of the annotated node.
func TestStripTerms(t *testing.T) {
	type term = corev1.NodeSelectorTerm
	disk := corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpExists}
	of := func(expressions []corev1.NodeSelectorRequirement, nodes ...string) (out term) {
		out.MatchExpressions = expressions
		for _, n := range nodes {
			out.MatchFields = append(out.MatchFields, onNode(n))
		}
		return out
	}
	type list = []corev1.NodeSelectorRequirement
	for name, tt := range map[string]struct{ before, want []term }{
		"a term of the pin":              {[]term{of(list{marker}, "node1")}, nil},
		"with a requirement of the user": {[]term{of(list{disk, marker}, "node1")}, []term{of(list{disk})}},
		"one of two": {[]term{of(list{marker}, "node1"), of(list{disk}, "node1")},
			[]term{of(list{disk}, "node1")}},
		"another webhook adds another node":  {[]term{of(list{marker}, "node1", "node2")}, []term{of(list{}, "node2")}},
		"without the marker":                 {[]term{of(list{disk}, "node1")}, []term{of(list{disk}, "node1")}},
		"of another node":                    {[]term{of(list{marker}, "node2")}, []term{of(list{marker}, "node2")}},
		"an empty term remains, as it was":   {[]term{{}}, []term{{}}},
		"the marker alone, written by users": {[]term{of(list{marker})}, []term{of(list{marker})}},
	} {
		p := &corev1.Pod{}
		p.Annotations = map[string]string{"leasehold.dev/pinned-node": "node1"}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: tt.before}}}
		strip(p)
		var got []term
		if r := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			got = r.NodeSelectorTerms
		}
		check.NoDiff(t, cmp.Diff(tt.want, got, cmpopts.EquateEmpty()), name)
	}
}

// A decision takes nothing away that a user wrote. A required pod can run on its node alone, and
// the other modes exclude no node. A second call of the same admission changes nothing, and one
// with another decision has the effect of that one alone.
func TestApply(t *testing.T) {
	modes := []policy.PinMode{policy.PinRequire, policy.PinPrefer, policy.PinNone}
	rapid.Check(t, func(t *rapid.T) {
		user := anyPod(t)
		strip(user)
		first := rapid.SampledFrom(modes).Draw(t, "first")
		mode := rapid.SampledFrom(modes).Draw(t, "mode")
		v := func(mode policy.PinMode, node string) decision {
			return decision{Mode: mode, Node: node, Expected: "10.0.0.7", Reason: reserved,
				Text: string(mode) + " " + node}
		}
		alone := user.DeepCopy()
		apply(alone, v(mode, "node1"))
		pod := user.DeepCopy()
		apply(pod, v(first, rapid.SampledFrom([]string{"node1", "node2"}).Draw(t, "first node")))
		for range 2 {
			strip(pod)
			apply(pod, v(mode, "node1"))
		}
		check.NoDiff(t, cmp.Diff(alone, pod, cmpopts.EquateEmpty(), emptyAffinity), "after another decision")
		for _, name := range []string{"node1", "node2"} {
			for _, disk := range []string{"ssd", "hdd"} {
				n := node(name)
				n.Labels["disk"] = disk
				want := fits(t, user, n) && (mode != policy.PinRequire || name == "node1")
				check.Equal(t, fits(t, pod, n), want, mode, "fits on", name, "with", disk)
			}
		}
		is, may := isRequired(pod, "node1"), mode == policy.PinRequire
		if is && !may || !is && may && fits(t, pod, node("node1")) {
			t.Fatalf("%s: isRequired says %t", mode, is)
		}
		if pod.Labels["leasehold.dev/retained"] != "true" ||
			!strings.HasPrefix(pod.Annotations["leasehold.dev/pin-reason"], v(mode, "node1").String()) {
			t.Fatalf("labels %v, annotations %v", pod.Labels, pod.Annotations)
		}
		_, said := pod.Annotations["leasehold.dev/pinned-node"]
		check.Equal(t, said, mode != policy.PinNone, pod.Annotations)
	})
}
