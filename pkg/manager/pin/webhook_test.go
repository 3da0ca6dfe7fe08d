package pin

import (
	"fmt"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// webhookOf returns a webhook with the default options.
func webhookOf(c *cluster) *webhook {
	return &webhook{Options: Options{Mode: policy.PinRequire, Schedulers: []string{"default-scheduler"}},
		cluster: c, unconfirmed: func(string) string { return "" }, log: logr.Discard()}
}

// onNode1 is a reservation of the pod db/db-0.
func onNode1() *reservation {
	return &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "r", ResourceVersion: "1"}, Pod: "db-0",
		Node: "node1", Bound: true}
}

// ofStatefulSet returns the pod db-0 of a StatefulSet.
func ofStatefulSet(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0",
		Annotations:     map[string]string{policy.Annotation: "10"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Controller: new(true)}}},
		Spec: corev1.PodSpec{SchedulerName: "default-scheduler"}}
	for _, c := range change {
		c(p)
	}
	return p
}

// call has the API server call the webhook for a pod, and returns the mode and the reason.
func (w *webhook) call(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	must.Succeed(t, w.pin(t.Context(),
		admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "db"}}, p))
	return p.Annotations["leasehold.dev/pin-reason"]
}

// Other webhooks change a pod after it was pinned, so that the webhook is called again. What does
// not hold any more is taken out, and nothing else.
func TestCalledAgain(t *testing.T) {
	gate := corev1.PodSchedulingGate{Name: "a.b/c"}
	for name, tt := range map[string]struct {
		later  func(*corev1.Pod)
		reason string
		want   func(*corev1.Pod) // what differs from the pod without the pin, after the other webhook
	}{
		"nothing": {func(*corev1.Pod) {}, "Reserved: require node1, which has its address",
			func(p *corev1.Pod) { require(affinityOf(p), "node1") }},
		"a selector": {wantsDisk("hdd"), "NodeExcluded: the pod's own node selectors exclude node1",
			func(*corev1.Pod) {}},
		"a selector that the node meets": {wantsDisk("ssd"), "Reserved: require node1, which has its address",
			func(p *corev1.Pod) { require(affinityOf(p), "node1") }},
		"a gate": {func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{gate} },
			"Reserved: prefer node1, which has its address; not required: it has scheduling gates",
			func(p *corev1.Pod) {
				affinityOf(p).PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{
					{Weight: 100, Preference: pinned(corev1.NodeSelectorTerm{}, "node1")}}
			}},
		"a node":             {func(p *corev1.Pod) { p.Spec.NodeName = "node2" }, "", func(*corev1.Pod) {}},
		"the host's network": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "", func(*corev1.Pod) {}},
		"the mode none": {func(p *corev1.Pod) { p.Annotations["leasehold.dev/pin"] = "none" },
			"NotWanted: the pin mode is none", func(*corev1.Pod) {}},
		"its own requirement": {func(p *corev1.Pod) { addRequirement(p, "disk") },
			"Reserved: require node1, which has its address",
			func(p *corev1.Pod) { require(affinityOf(p), "node1") }},
	} {
		t.Run(name, func(t *testing.T) {
			clock := noon
			w := webhookOf(clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock, onNode1()))
			pod, want := ofStatefulSet(), ofStatefulSet()
			w.call(t, pod)
			tt.later(pod)
			tt.later(want)
			check.Equal(t, w.call(t, pod), tt.reason)
			tt.want(want)
			check.NoDiff(t, cmp.Diff(want.Spec, pod.Spec, cmpopts.EquateEmpty(), emptyAffinity))
		})
	}
}

func affinityOf(p *corev1.Pod) *corev1.NodeAffinity {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	}
	return p.Spec.Affinity.NodeAffinity
}

// addRequirement adds a requirement to each required term, as a webhook does that restricts pods.
func addRequirement(p *corev1.Pod, key string) {
	a := affinityOf(p)
	exists := corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpExists}
	if a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		a.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}
	terms := a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		terms[i].MatchExpressions = append(terms[i].MatchExpressions, exists)
	}
}

// The patience of the namespace is written to the pod.
func TestPatienceOfTheNamespace(t *testing.T) {
	for name, tt := range map[string]struct{ own, namespace, want string }{
		"nobody sets one":        {"", "", ""},
		"the namespace sets one": {"", "forever", "forever"},
		"the pod sets one":       {"10s", "forever", "10s"},
		// The policy of namespaces accepts it, and that of pods would reject the pod.
		"the namespace sets one that is too long": {"", "99999h", ""},
	} {
		p := ofStatefulSet()
		if tt.own != "" {
			p.Annotations["leasehold.dev/pin-patience"] = tt.own
		}
		labels := map[string]string{}
		if tt.namespace != "" {
			labels["leasehold.dev/pin-patience"] = tt.namespace
		}
		clock := noon
		w := webhookOf(clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock, onNode1()))
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "db", Labels: labels}}
		must.Succeed(t, w.cluster.namespaces.Update(ns))
		w.call(t, p)
		check.Equal(t, p.Annotations["leasehold.dev/pin-patience"], tt.want, name, p.Annotations)
	}
}

// The work of an admission is limited by what the pod has, however many nodes have addresses of its
// reservation name: a pod that asks for much is compared with one node, and others with all.
func TestWorkOfAnAdmission(t *testing.T) {
	const nodes = 5000
	values := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprint(i))
		}
		return all
	}
	disk := func(n int) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			terms := &corev1.NodeSelector{}
			for _, v := range values(n) {
				is := corev1.NodeSelectorRequirement{Key: "disk", Operator: "In", Values: []string{v}}
				terms.NodeSelectorTerms = append(terms.NodeSelectorTerms,
					corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{is}})
			}
			control.NodeAffinity(p).RequiredDuringSchedulingIgnoredDuringExecution = terms
		}
	}
	list := func(p *corev1.Pod) {
		disk(1)(p)
		control.RequiredTerms(p)[0].MatchExpressions[0].Values = values(100_000)
	}
	labels := func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{}
		for _, key := range values(100_000) {
			p.Spec.NodeSelector["x"+key] = ""
		}
	}
	tolerations := func(p *corev1.Pod) {
		wantsDisk("none")(p)
		p.Spec.Tolerations = make([]corev1.Toleration, 100_000)
	}
	for name, tt := range map[string]struct {
		change   func(*corev1.Pod)
		min, max int // how many nodes it looks at
	}{
		"plain": {wantsDisk("none"), nodes, nodes}, "a few terms": {disk(5), nodes, nodes},
		"many terms": {disk(1000), 50, 100}, "very many terms": {disk(35_000), 1, 1},
		"a long list": {list, 1, 1}, "labels": {labels, 1, 1}, "tolerations": {tolerations, 1, 1},
	} {
		clock := noon
		w, looked := webhookOf(clusterOf(t, map[string]*corev1.Node{"node": node("node")}, &clock)), 0
		w.unconfirmed = func(string) string { looked++; return "" }
		d := w.decide("db", ofStatefulSet(tt.change), slices.Values(slices.Repeat([]pinTarget{{Node: "node"}}, nodes)))
		if looked < tt.min || looked > tt.max || d.Reason != nodeExcluded {
			t.Errorf("%s: it looked at %d nodes, want %d to %d: %s", name, looked, tt.min, tt.max, d.Reason)
		}
	}
}
