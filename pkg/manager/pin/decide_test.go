package pin

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-1",
		Labels: map[string]string{"disk": "ssd"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(n)
	}
	return n
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func wantsDisk(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": value} }
}

// facts are the words of testdata/decide.txt.
func (f *podFacts) facts(t *testing.T) map[string]func(string) {
	return map[string]func(string){
		"mode": func(v string) { f.Wish.Mode = policy.PinMode(v) },
		"patience": func(v string) {
			patience, err := policy.ParsePatience(v)
			must.Succeed(t, err)
			f.Wish.Patience, f.Wish.IsSet = patience, true
		},
		"invalid-mode":   func(string) { f.Wish.Note = `"x" is not a pin mode` },
		"unknown":        func(string) { f.Known = false },
		"no-reservation": func(string) { f.Target = pinTarget{} },
		"no-address":     func(string) { f.Target.Addresses = "" },
		"remembered":     func(string) { f.Target.Remembered = true },
		"unconfirmed":    func(string) { f.Unconfirmed = "2026-01-01T00:00:00Z: AgentMissing" },
		"struck":         func(string) { f.Target.HasStrike = true },
		"evicted":        func(v string) { f.Target.Last = instance{Node: v, Evicted: true} },
		"failures": func(v string) {
			n, err := strconv.Atoi(v)
			must.Succeed(t, err)
			f.Target.Last = instance{Node: "node1", Failures: n}
		},
		"failures-on": func(v string) { f.Target.Last.Node = v },
		"no-node":     func(string) { f.Node = nil },
		"not-ready":   func(string) { f.Node.Status.Conditions[0].Status = corev1.ConditionUnknown },
		"silent":      func(string) { f.Node.Status.Conditions = nil },
		"cordoned":    func(string) { cordoned(f.Node) },
		"taint": func(v string) {
			f.Node.Spec.Taints = []corev1.Taint{{Key: "team", Value: "b", Effect: corev1.TaintEffect(v)}}
		},
		"tolerates": func(v string) {
			f.Pod.Spec.Tolerations = []corev1.Toleration{{Key: v, Operator: corev1.TolerationOpExists}}
		},
		"disk": func(v string) { wantsDisk(v)(f.Pod) },
		"wants": func(v string) {
			affinityOf(f.Pod).RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchFields: []corev1.NodeSelectorRequirement{onNode(v)}}}}
		},
		"gated": func(string) {
			f.Pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a.b/c"}}
		},
		"grouped":  func(string) { f.Pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} },
		"labelled": func(string) { f.Pod.Labels = map[string]string{"kueue.x-k8s.io/pod-group-name": "a"} },
		"volcano":  func(string) { f.Scheduled, f.Pod.Spec.SchedulerName = false, "volcano" },
		"bare":     func(string) { f.Recreated = false },
	}
}

func TestDecide(t *testing.T) {
	for _, tt := range cases.Read(t, "testdata/decide.txt")[1:] {
		t.Run(tt.Name, func(t *testing.T) {
			f := podFacts{Pod: &corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "default-scheduler"}},
				Wish:      wish{Mode: policy.PinRequire, Patience: policy.DefaultPatience},
				Scheduled: true, Recreated: true, Known: true,
				Target: pinTarget{Node: "node1", Addresses: "10.0.0.7"}, Node: node("node1")}
			cases.Words(t, strings.Fields(strings.Join(tt.Given, " ")), f.facts(t))
			v := decide(f)
			check.Equal(t, fmt.Sprintf("%s %s: %s", v.Mode, v.Reason, v.Text), tt.Want[0])
			if v.Pinned() && v.Node != "node1" {
				t.Errorf("pinned to %q", v.Node)
			}
		})
	}
}

func TestWishOf(t *testing.T) {
	type values = map[string]string
	const (
		mode, patience = "leasehold.dev/pin", "leasehold.dev/pin-patience"
		invalid        = `"must" is not a pin mode; want "require", "prefer" or "none"`
		soon           = `"soon" is not a patience; want a duration ("5s", "2m"), whole minutes ("10") or "forever"`
	)
	second := lease.Window(1e9)
	for _, tt := range []struct {
		name           string
		pod, namespace values
		want           wish
	}{
		{"nothing", nil, nil, wish{"require", 5 * second, false, ""}},
		{"of the namespace", nil, values{mode: "prefer", patience: "10s"}, wish{"prefer", 10 * second, true, ""}},
		{"of the pod", values{mode: "none", patience: "forever"}, values{mode: "prefer", patience: "10s"},
			wish{"none", lease.Forever, true, ""}},
		{"invalid in the pod", values{mode: "must", patience: "soon"}, values{mode: "prefer", patience: "10s"},
			wish{"prefer", 10 * second, true, invalid}},
		{"invalid in the namespace", nil, values{mode: "must", patience: "soon"},
			wish{"require", 5 * second, false, "the namespace's " + invalid + "; " + soon}},
		{"an empty mode", values{mode: ""}, nil,
			wish{"require", 5 * second, false, `"" is not a pin mode; want "require", "prefer" or "none"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check.Equal(t, wishOf(tt.pod, tt.namespace, policy.PinRequire), tt.want)
		})
	}
}

func TestRecreated(t *testing.T) {
	kinds := []schema.GroupKind{{Group: "core.strimzi.io", Kind: "StrimziPodSet"}}
	owned := func(version, kind string, isController bool) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
			{APIVersion: version, Kind: kind, Name: "a", Controller: &isController}}}}
	}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"no owner":                         {&corev1.Pod{}, false},
		"StatefulSet":                      {owned("apps/v1", "StatefulSet", true), true},
		"StatefulSet, not as a controller": {owned("apps/v1", "StatefulSet", false), false},
		"StatefulSet of another group":     {owned("example.com/v1", "StatefulSet", true), false},
		"ReplicaSet":                       {owned("apps/v1", "ReplicaSet", true), true},
		"StatefulSet of Kruise":            {owned("apps.kruise.io/v1beta1", "StatefulSet", true), true},
		"CloneSet":                         {owned("apps.kruise.io/v1alpha1", "CloneSet", true), true},
		"Job":                              {owned("batch/v1", "Job", true), false},
		"VirtualMachineInstance":           {owned("kubevirt.io/v1", "VirtualMachineInstance", true), false},
		"a kind of --pin-kinds":            {owned("core.strimzi.io/v1beta2", "StrimziPodSet", true), true},
	} {
		check.Equal(t, recreated(tt.pod, kinds), tt.want, name)
	}
}
