package scenarios

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// soakPodOf returns a Ready pod with a window of three minutes.
func soakPodOf(uid, node, ip string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a-0", UID: types.UID(uid),
			Annotations: map[string]string{Window: "180s"}},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// TestSoakPods checks which sequences of a pod's addresses violate a promise.
func TestSoakPods(t *testing.T) {
	type step struct {
		after time.Duration // the step before
		pod   corev1.Pod
	}
	without := func(p corev1.Pod) corev1.Pod { p.Annotations = nil; return p }
	pending := func(p corev1.Pod) corev1.Pod {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending}
		return p
	}
	tests := []struct {
		name       string
		superseded bool
		steps      []step
		violated   string
	}{
		{name: "kept",
			steps: []step{{0, soakPodOf("1", "n1", "10.0.0.1")}, {time.Minute, soakPodOf("2", "n1", "10.0.0.1")}}},
		{name: "lost", violated: "a-0 had 10.0.0.1 on n1, was away for at most 1m0s, and has 10.0.0.2",
			steps: []step{{0, soakPodOf("1", "n1", "10.0.0.1")}, {time.Minute, soakPodOf("2", "n1", "10.0.0.2")}}},
		{name: "lost by the same pod", violated: "a-0 had 10.0.0.1",
			steps: []step{{0, soakPodOf("1", "n1", "10.0.0.1")}, {time.Minute, soakPodOf("1", "n1", "10.0.0.2")}}},
		{name: "lost while the new pod was pending", violated: "a-0 had 10.0.0.1",
			steps: []step{{0, soakPodOf("1", "n1", "10.0.0.1")}, {time.Minute, pending(soakPodOf("2", "n1", ""))},
				{time.Minute, soakPodOf("2", "n1", "10.0.0.2")}}},
		{name: "the sandbox did not end", superseded: true,
			steps: []step{{0, soakPodOf("1", "n1", "10.0.0.1")}, {time.Minute, soakPodOf("2", "n1", "10.0.0.2")}}},
		{name: "the window has ended", steps: []step{{0, soakPodOf("1", "n1", "10.0.0.1")},
			{181 * time.Second, soakPodOf("2", "n1", "10.0.0.2")}}},
		{name: "on another node",
			steps: []step{{0, soakPodOf("1", "n1", "10.0.0.1")}, {time.Minute, soakPodOf("2", "n2", "10.0.1.1")}}},
		{name: "after another node, where it got no address",
			steps: []step{{0, soakPodOf("1", "n1", "10.0.0.1")}, {time.Minute, pending(soakPodOf("2", "n2", ""))},
				{time.Minute, soakPodOf("3", "n1", "10.0.0.2")}}},
		{name: "without a window", steps: []step{{0, without(soakPodOf("1", "n1", "10.0.0.1"))},
			{time.Minute, without(soakPodOf("2", "n1", "10.0.0.2"))}}},
		{name: "stuck", violated: "a-0 on \"n1\" is not Ready since 8m0s",
			steps: []step{{0, pending(soakPodOf("1", "n1", ""))}, {9 * time.Minute, pending(soakPodOf("1", "n1", ""))},
				{time.Minute, pending(soakPodOf("1", "n1", ""))}}},
		{name: "slow", steps: []step{{0, pending(soakPodOf("1", "n1", ""))},
			{7 * time.Minute, soakPodOf("1", "n1", "10.0.0.1")}, {7 * time.Minute, soakPodOf("1", "n1", "10.0.0.1")}}},
	}
	for _, tt := range tests {
		s := &soakRun{counts: map[string]int{}}
		k, now := &soakPod{}, time.Unix(1e9, 0)
		for _, step := range tt.steps {
			now = now.Add(step.after)
			s.seePod(k, step.pod, now, func() bool { return tt.superseded })
		}
		if tt.violated == "" && len(s.wrong) > 0 || tt.violated != "" && (len(s.wrong) != 1 ||
			!strings.Contains(s.wrong[0], tt.violated)) {
			t.Errorf("%s: violations %q, want %q", tt.name, s.wrong, tt.violated)
		}
	}
}

// TestSoakDifferences checks that each difference between stores, objects and pods is found.
func TestSoakDifferences(t *testing.T) {
	now := time.Unix(1e9, 0)
	healthy := func() soakView {
		reserved := inspect.Reservation{}
		reserved.Spec.PodName, reserved.Spec.NodeName, reserved.Status.State = "a-0", "n1", "Bound"
		reserved.Status.Addresses = append(reserved.Status.Addresses,
			struct{ Network, Interface, Address string }{Address: "10.0.0.1"})
		return soakView{
			namespace: "ns",
			leases: map[string][]inspect.Lease{"n1": {
				{Address: "10.0.0.1", Namespace: "ns", Pod: "a-0", UID: "1", State: "Bound", Window: "3m"},
				{Address: "10.0.0.2", Namespace: "other", Pod: "b-0", UID: "2", State: "Held", Firm: true, Window: "3m",
					Until: now.Add(time.Minute).Format(time.RFC3339)},
				{Address: "10.0.0.3", Namespace: "ns", Pod: "c", UID: "3", State: "Held"}, // in cool-down
			}},
			pools:     map[string]inspect.Counts{"n1": {Size: 253, Bound: 1, Held: 1, Free: 251}},
			pods:      map[string]corev1.Pod{"1": soakPodOf("1", "n1", "10.0.0.1")},
			published: []inspect.Reservation{reserved},
		}
	}
	tests := []struct {
		name   string
		change func(v soakView)
		want   []string
	}{
		{name: "healthy", change: func(soakView) {}},
		{name: "leaked", change: func(v soakView) { delete(v.pods, "1") },
			want: []string{"n1 has 10.0.0.1 bound to a-0 (1), which is not there"}},
		{name: "not in the store", change: func(v soakView) { v.pods["9"] = soakPodOf("9", "n1", "10.0.0.9") },
			want: []string{`a-0 has 10.0.0.9, which the store of n1 has for ""`}},
		{name: "of another pod", change: func(v soakView) { v.pods["9"] = soakPodOf("9", "n1", "10.0.0.1") },
			want: []string{`a-0 has 10.0.0.1, which the store of n1 has for "1"`}},
		{name: "expired",
			change: func(v soakView) { v.leases["n1"][1].Until = now.Add(-time.Minute).Format(time.RFC3339) },
			want:   []string{"n1 holds 10.0.0.2 for b-0 until "}},
		{name: "published after its end", change: func(v soakView) { v.published[0].Spec.PodName = "z-0" },
			want: []string{`n1 has "10.0.0.1 Bound" of a-0, published is ""`,
				`n1 has "" of z-0, published is "10.0.0.1 Bound"`}},
		{name: "other counts",
			change: func(v soakView) { v.pools["n1"] = inspect.Counts{Size: 253, Bound: 2, Held: 1, Free: 250} },
			want:   []string{"the NodeAddressPool of n1 does not match its store"}},
		{name: "counts that do not add up",
			change: func(v soakView) { v.pools["n1"] = inspect.Counts{Size: 253, Bound: 1, Held: 1, Free: 250} },
			want:   []string{"the NodeAddressPool of n1 does not match its store"}},
	}
	for _, tt := range tests {
		v := healthy()
		tt.change(v)
		got := v.differences(now)
		slices.Sort(got)
		slices.Sort(tt.want)
		if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestSoakLasting checks that only a difference that lasts is a violation, and only once.
func TestSoakLasting(t *testing.T) {
	lasting := soakLasting{since: map[string]time.Time{}, reported: map[string]bool{}}
	var reported []string
	for i := range 60 {
		found := []string{"leaked"}
		if i%8 != 0 {
			found = append(found, "late") // for less than three minutes at a time
		}
		now := time.Unix(1e9, 0).Add(time.Duration(i) * 20 * time.Second)
		reported = append(reported, lasting.over(found, now)...)
	}
	if !slices.Equal(reported, []string{"leaked"}) {
		t.Errorf("reported %q", reported)
	}
}

func TestSoakDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "2": 2 * time.Hour, "0.1": 6 * time.Minute,
		"24": 24 * time.Hour, "0": -1, "-1": -1, "NaN": -1, "2h": -1, "1e9": -1} {
		t.Setenv(hoursEnv, text)
		got, err := soakDuration()
		if (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, error %v", text, got, err)
		}
	}
}
