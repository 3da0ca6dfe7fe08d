package pin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/policy"
)

func node(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-" + "1",
		Labels: map[string]string{"disk": "ssd"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, c := range change {
		c(n)
	}
	return n
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }
func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
func silent(n *corev1.Node)   { n.Status.Conditions = nil }
func tainted(effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "b", Effect: effect}} }
}

func tolerates(key string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}
	}
}

// facts are those of a pod whose address is on node1, which takes it.
func facts(change ...func(*podFacts)) podFacts {
	f := podFacts{
		Pod:  &corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "default-scheduler"}},
		Mode: policy.PinNominate, Fallback: policy.PinPrefer, Honoured: true, Known: true, Found: true,
		Target: pinTarget{Node: "node1", NodeUID: "uid-1", Addresses: "10.0.0.7"},
		Node:   node("node1"),
	}
	for _, c := range change {
		c(&f)
	}
	return f
}

func is(change ...func(*corev1.Node)) func(*podFacts) {
	return func(f *podFacts) { f.Node = node("node1", change...) }
}

func in(mode policy.PinMode) func(*podFacts) { return func(f *podFacts) { f.Mode = mode } }

func spec(change func(*corev1.PodSpec)) func(*podFacts) {
	return func(f *podFacts) { change(&f.Pod.Spec) }
}

func wantsDisk(value string) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"disk": value} }
}

func TestDecide(t *testing.T) {
	tests := []struct {
		story  string
		facts  podFacts
		mode   policy.PinMode
		reason pinReason
		text   string
	}{
		{"the usual", facts(), "nominate", reserved, "nominate node1, which has 10.0.0.7"},
		{"seen a moment ago", facts(func(f *podFacts) { f.Target.Remembered, f.Target.NodeUID = true, "" }),
			"nominate", remembered, "nominate node1, where it ran a moment ago"},
		{"required", facts(in(policy.PinRequire)), "require", reserved, "require node1, which has 10.0.0.7"},
		{"preferred", facts(in(policy.PinPrefer)), "prefer", reserved, "prefer node1, which has 10.0.0.7"},
		{"not wanted", facts(in(policy.PinNone)), "none", notWanted, "the pin mode is none"},
		{"not wanted, and nothing is known", podFacts{Mode: policy.PinNone}, "none", notWanted, "the pin mode is none"},
		{"a failed look-up is no absence", podFacts{Mode: policy.PinNominate}, "none", unknown,
			"its address could not be looked up"},
		{"a new pod", facts(func(f *podFacts) { f.Found, f.Target, f.Node = false, pinTarget{}, nil }), "none",
			noReservation, "no address waits for it"},
		{"an earlier pod was evicted", facts(in(policy.PinRequire), func(f *podFacts) { f.Target.Abandoned = true }),
			"none", abandoned, "an earlier pod waited for node1 and was evicted"},

		{"the node is gone", facts(func(f *podFacts) { f.Node = nil }), "none", nodeGone, "node1 is gone"},
		{"require does not wait for what is gone", facts(in(policy.PinRequire), func(f *podFacts) { f.Node = nil }),
			"none", nodeGone, "node1 is gone"},
		{"another node of that name", facts(func(f *podFacts) { f.Target.NodeUID = "uid-0" }), "none", nodeGone,
			"node1 is another one of that name"},
		{"not Ready", facts(is(notReady)), "none", nodeNotReady, "node1 is not Ready"},
		{"never reported", facts(is(silent)), "none", nodeNotReady, "node1 is not Ready"},
		{"cordoned", facts(is(cordoned)), "none", nodeCordoned, "node1 is cordoned"},
		{"prefer does not try either", facts(in(policy.PinPrefer), is(cordoned)), "none", nodeCordoned,
			"node1 is cordoned"},
		{"cordoned, tolerated", facts(is(cordoned), spec(tolerates("node.kubernetes.io/unschedulable"))), "nominate",
			reserved, "nominate node1, which has 10.0.0.7"},
		{"tainted", facts(is(tainted("NoSchedule"))), "none", nodeTainted, "node1 has the taint team=b:NoSchedule"},
		{"tainted to evict", facts(is(tainted("NoExecute"))), "none", nodeTainted,
			"node1 has the taint team=b:NoExecute"},
		{"tainted, tolerated", facts(is(tainted("NoSchedule")), spec(tolerates("team"))), "nominate", reserved,
			"nominate node1, which has 10.0.0.7"},
		{"tainted softly", facts(is(tainted("PreferNoSchedule"))), "nominate", reserved,
			"nominate node1, which has 10.0.0.7"},
		{"require waits", facts(in(policy.PinRequire), is(cordoned)), "require", reserved,
			"require node1, which has 10.0.0.7; it waits: node1 is cordoned"},
		{"require waits for the dead", facts(in(policy.PinRequire), is(notReady)), "require", reserved,
			"require node1, which has 10.0.0.7; it waits: node1 is not Ready"},

		{"selected by the user", facts(spec(wantsDisk("ssd"))), "nominate", reserved,
			"nominate node1, which has 10.0.0.7"},
		{"excluded by the user", facts(spec(wantsDisk("hdd"))), "none", nodeExcluded,
			"the pod's own node selectors exclude node1"},
		{"require does not wait against its user", facts(in(policy.PinRequire), spec(wantsDisk("hdd"))), "none",
			nodeExcluded, "the pod's own node selectors exclude node1"},
		{"the user names the node", facts(func(f *podFacts) { require(f.Pod, "node1") }), "nominate", reserved,
			"nominate node1, which has 10.0.0.7"},
		{"the user names another", facts(func(f *podFacts) { require(f.Pod, "node2") }), "none", nodeExcluded,
			"the pod's own node selectors exclude node1"},

		{"evicted", facts(func(f *podFacts) { f.Last = instance{Node: "node1", Evicted: true} }), "none", evicted,
			"it was evicted from node1"},
		{"required and evicted", facts(in(policy.PinRequire),
			func(f *podFacts) { f.Last = instance{Node: "node1", Evicted: true} }),
			"none", evicted, "it was evicted from node1"},
		{"drained, waits", facts(in(policy.PinRequire), is(cordoned),
			func(f *podFacts) { f.Last = instance{Node: "node1", Evicted: true} }),
			"require", reserved, "require node1, which has 10.0.0.7; it waits: node1 is cordoned"},
		{"evicted elsewhere", facts(func(f *podFacts) { f.Last = instance{Node: "node2", Evicted: true} }), "nominate",
			reserved, "nominate node1, which has 10.0.0.7"},
		{"failed once", facts(func(f *podFacts) { f.Last = instance{Node: "node1", Failures: 1} }), "nominate",
			reserved, "nominate node1, which has 10.0.0.7"},
		{"failed twice", facts(func(f *podFacts) { f.Last = instance{Node: "node1", Failures: 2} }), "none",
			failedStarts, "it has failed to start on node1 2 times"},

		{"another scheduler", facts(func(f *podFacts) { f.Honoured = false; f.Pod.Spec.SchedulerName = "volcano" }),
			"prefer", reserved,
			`prefer node1, which has 10.0.0.7; not nominate: the scheduler "volcano" is not among --schedulers`},
		{"another scheduler, required", facts(in(policy.PinRequire), func(f *podFacts) { f.Honoured = false }),
			"require", reserved, "require node1, which has 10.0.0.7"},
		{"another scheduler, no fallback", facts(func(f *podFacts) { f.Honoured = false; f.Fallback = policy.PinNone }),
			"none",
			notWanted,
			`none node1, which has 10.0.0.7; not nominate: the scheduler "default-scheduler" is not among ` +
				`--schedulers`},
		{"too many wait", facts(func(f *podFacts) { f.Crowded = true }), "prefer", reserved,
			"prefer node1, which has 10.0.0.7; not nominate: too many pods wait for their nomination"},
		{"a word that is no mode", facts(func(f *podFacts) { f.ModeNote = `"x" is not a pin mode` }), "nominate",
			reserved, `nominate node1, which has 10.0.0.7; "x" is not a pin mode`},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			v := decide(tt.facts)
			if v.Mode != tt.mode || v.Reason != tt.reason || v.Text != tt.text {
				t.Errorf("got %s, %s: %s\nwant %s, %s: %s", v.Mode, v.Reason, v.Text, tt.mode, tt.reason, tt.text)
			}
			if v.Pinned() && v.Node != "node1" {
				t.Errorf("pinned to %q", v.Node)
			}
		})
	}
}

func TestModeOf(t *testing.T) {
	tests := []struct {
		story, pod, namespace string
		mode                  policy.PinMode
		note                  string
	}{
		{"nobody says", "-", "", "nominate", ""},
		{"the namespace says", "-", "prefer", "prefer", ""},
		{"the pod wins", "none", "prefer", "none", ""},
		{"the pod's word is none", "must", "prefer", "prefer",
			`"must" is not a pin mode; want "nominate", "require", "prefer" or "none"`},
		{"an empty word", "", "", "nominate", `"" is not a pin mode; want "nominate", "require", "prefer" or "none"`},
		{"the namespace's word is none", "-", "must", "nominate",
			`the namespace's "must" is not a pin mode; want "nominate", "require", "prefer" or "none"`},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			annotations := map[string]string{}
			if tt.pod != "-" {
				annotations["leasehold.dev/pin"] = tt.pod
			}
			mode, note := modeOf(annotations, tt.namespace, policy.PinNominate)
			if mode != tt.mode || note != tt.note {
				t.Errorf("got %s (%s), want %s (%s)", mode, note, tt.mode, tt.note)
			}
		})
	}
}
