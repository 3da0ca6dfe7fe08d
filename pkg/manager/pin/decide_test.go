package pin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
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
func notReady(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }
func silent(n *corev1.Node)   { n.Status.Conditions = nil }
func tainted(effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "b", Effect: effect}} }
}

func tolerates(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}
	}
}

func wantsDisk(value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": value} }
}

func wantsNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{onNode(name)}}}}
	}
}

func TestDecide(t *testing.T) {
	type facts = func(*podFacts)
	is := func(change ...func(*corev1.Node)) facts {
		return func(f *podFacts) { f.Node = node("node1", change...) }
	}
	in := func(mode policy.PinMode) facts { return func(f *podFacts) { f.Wish.Mode = mode } }
	pod := func(change func(*corev1.Pod)) facts { return func(f *podFacts) { change(f.Pod) } }
	last := func(i instance) facts { return func(f *podFacts) { f.Target.Last = i } }
	patience := func(d lease.Window) facts {
		return func(f *podFacts) { f.Wish.Patience, f.Wish.IsSet = d, true }
	}
	minute, forever := patience(lease.Window(60e9)), patience(lease.Forever)
	bare := func(f *podFacts) { f.Recreated = false }
	struck := func(f *podFacts) { f.Target.HasStrike = true }
	gated := pod(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a.b/c"}} })
	grouped := pod(func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} })
	labelled := pod(func(p *corev1.Pod) { p.Labels = map[string]string{"kueue.x-k8s.io/pod-group-name": "a"} })
	volcano := func(f *podFacts) { f.Scheduled, f.Pod.Spec.SchedulerName = false, "volcano" }
	const (
		required  = "require node1, which has 10.0.0.7"
		preferred = "prefer node1, which has 10.0.0.7"
	)
	for _, tt := range []struct {
		name   string
		facts  []facts // what differs from a pod whose address is on node1, which takes it
		mode   string
		reason pinReason
		text   string
	}{
		{"reserved", nil, "require", reserved, required},
		{"an address that is not known", []facts{func(f *podFacts) { f.Target.Addresses = "" }}, "require", reserved,
			"require node1, which has its address"},
		{"remembered", []facts{func(f *podFacts) { f.Target.Remembered = true }}, "require", remembered,
			"require node1, where it ran a moment ago"},
		{"unconfirmed", []facts{func(f *podFacts) { f.Unconfirmed = "2026-01-01T00:00:00Z: AgentMissing" }}, "require",
			reserved, required + "; no agent confirms that since 2026-01-01T00:00:00Z: AgentMissing"},
		{"prefer", []facts{in(policy.PinPrefer)}, "prefer", reserved, preferred},
		{"none", []facts{in(policy.PinNone)}, "none", notWanted, "the pin mode is none"},
		{"none, and nothing is known", []facts{in(policy.PinNone), func(f *podFacts) { f.Known = false }}, "none",
			notWanted, "the pin mode is none"},
		{"unknown", []facts{func(f *podFacts) { f.Known = false }}, "none", unknown,
			"its address could not be looked up"},
		{"no reservation", []facts{func(f *podFacts) { f.Target = pinTarget{} }}, "none", noReservation,
			"no address waits for it"},
		{"an invalid mode", []facts{func(f *podFacts) { f.Wish.Note = `"x" is not a pin mode` }}, "require", reserved,
			required + `; "x" is not a pin mode`},

		{"no node", []facts{func(f *podFacts) { f.Node = nil }}, "none", nodeGone, "node1 is gone"},
		{"not Ready", []facts{is(notReady)}, "none", nodeNotReady, "node1 is not Ready"},
		{"never reported", []facts{is(silent)}, "none", nodeNotReady, "node1 is not Ready"},
		{"cordoned", []facts{is(cordoned)}, "none", nodeCordoned, "node1 is cordoned"},
		{"prefer, cordoned", []facts{in(policy.PinPrefer), is(cordoned)}, "none", nodeCordoned, "node1 is cordoned"},
		{"cordoned, tolerated", []facts{is(cordoned), pod(tolerates("node.kubernetes.io/unschedulable"))}, "require",
			reserved, required},
		{"tainted", []facts{is(tainted("NoSchedule"))}, "none", nodeTainted, "node1 has the taint team=b:NoSchedule"},
		{"tainted to evict", []facts{is(tainted("NoExecute"))}, "none", nodeTainted,
			"node1 has the taint team=b:NoExecute"},
		{"tainted, tolerated", []facts{is(tainted("NoSchedule")), pod(tolerates("team"))}, "require", reserved,
			required},
		{"tainted softly", []facts{is(tainted("PreferNoSchedule"))}, "require", reserved, required},

		{"a patience of its own, cordoned", []facts{minute, is(cordoned)}, "require", reserved,
			required + "; it waits: node1 is cordoned"},
		{"a patience of its own, not Ready", []facts{minute, is(notReady)}, "require", reserved,
			required + "; it waits: node1 is not Ready"},
		{"a patience of its own, tainted", []facts{minute, is(tainted("NoSchedule"))}, "require", reserved,
			required + "; it waits: node1 has the taint team=b:NoSchedule"},
		{"a patience of its own, gone", []facts{minute, func(f *podFacts) { f.Node = nil }}, "none", nodeGone,
			"node1 is gone"},
		{"a patience of its own, prefer, cordoned", []facts{minute, in(policy.PinPrefer), is(cordoned)}, "none",
			nodeCordoned, "node1 is cordoned"},
		{"a patience of its own after a strike, cordoned", []facts{minute, struck, is(cordoned)}, "none", nodeCordoned,
			"node1 is cordoned"},

		{"selected by the user", []facts{pod(wantsDisk("ssd"))}, "require", reserved, required},
		{"excluded by the user", []facts{pod(wantsDisk("hdd"))}, "none", nodeExcluded,
			"the pod's own node selectors exclude node1"},
		{"excluded by the user, forever", []facts{forever, pod(wantsDisk("hdd"))}, "none", nodeExcluded,
			"the pod's own node selectors exclude node1"},
		{"the user names the node", []facts{pod(wantsNode("node1"))}, "require", reserved, required},
		{"the user names another", []facts{pod(wantsNode("node2"))}, "none", nodeExcluded,
			"the pod's own node selectors exclude node1"},

		{"evicted", []facts{last(instance{Node: "node1", Evicted: true})}, "none", evicted,
			"it was evicted from node1"},
		{"drained", []facts{forever, is(cordoned), last(instance{Node: "node1", Evicted: true})}, "require", reserved,
			required + "; it waits: node1 is cordoned"},
		{"evicted elsewhere", []facts{last(instance{Node: "node2", Evicted: true})}, "require", reserved, required},
		{"failed once", []facts{last(instance{Node: "node1", Failures: 1})}, "require", reserved, required},
		{"failed twice elsewhere", []facts{last(instance{Node: "node2", Failures: 2})}, "require", reserved, required},
		{"failed twice", []facts{last(instance{Node: "node1", Failures: 2})}, "none", failedStarts,
			"it has failed to start on node1 2 times"},

		{"another scheduler", []facts{volcano}, "prefer", reserved,
			preferred + `; not required: the scheduler "volcano" is not among --schedulers`},
		{"another scheduler, prefer", []facts{volcano, in(policy.PinPrefer)}, "prefer", reserved, preferred},
		{"another scheduler, forever", []facts{volcano, forever}, "prefer", reserved,
			preferred + `; not required: the scheduler "volcano" is not among --schedulers`},
		{"another's gate", []facts{gated}, "prefer", reserved, preferred + "; not required: it has scheduling gates"},
		{"another's gate, forever", []facts{gated, forever}, "prefer", reserved,
			preferred + "; not required: it has scheduling gates"},
		{"a pod group", []facts{grouped}, "prefer", reserved,
			preferred + "; not required: it is scheduled as one of a group"},
		{"a pod group by a label", []facts{labelled}, "prefer", reserved,
			preferred + "; not required: it is scheduled as one of a group"},
		{"not recreated", []facts{bare}, "prefer", reserved,
			preferred + "; not required: no controller of --pin-kinds would create it again"},
		{"not recreated, with a patience of its own", []facts{bare, minute}, "prefer", reserved,
			preferred + "; not required: no controller of --pin-kinds would create it again"},
		{"not recreated, forever", []facts{bare, forever}, "require", reserved, required},
		{"after a strike", []facts{struck}, "prefer", reserved,
			preferred + "; not required: an earlier pod did not get onto node1"},
		{"after a strike, forever", []facts{struck, forever}, "require", reserved, required},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := podFacts{Pod: &corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "default-scheduler"}},
				Wish:      wish{Mode: policy.PinRequire, Patience: policy.DefaultPatience},
				Scheduled: true, Recreated: true, Known: true,
				Target: pinTarget{Node: "node1", Addresses: "10.0.0.7"}, Node: node("node1")}
			for _, change := range tt.facts {
				change(&f)
			}
			v := decide(f)
			if string(v.Mode) != tt.mode || v.Reason != tt.reason || v.Text != tt.text {
				t.Errorf("got %s, %s: %s\nwant %s, %s: %s", v.Mode, v.Reason, v.Text, tt.mode, tt.reason, tt.text)
			}
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
			if got := wishOf(tt.pod, tt.namespace, policy.PinRequire); got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
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
		if got := recreated(tt.pod, kinds); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
