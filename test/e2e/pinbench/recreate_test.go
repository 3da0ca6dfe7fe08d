package pinbench

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPercentile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	for _, c := range []struct {
		of   []time.Duration
		p    int
		want time.Duration
	}{{nil, 50, 0}, {hundred[:1], 1, 1}, {hundred[:1], 99, 1}, {hundred, 50, 50}, {hundred, 99, 99},
		{hundred, 100, 100}, {hundred[:3], 50, 2}} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("percentile %d of %d values is %d, want %d", c.p, len(c.of), got, c.want)
		}
	}
}

func TestJudge(t *testing.T) {
	pod := func(node, address string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0"}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{PodIP: address}}
	}
	old := pod("a", "10.0.0.1")
	for _, c := range []struct {
		about   string
		now     *corev1.Pod
		running bool
		want    trial
		why     string
	}{
		{"returned", pod("a", "10.0.0.1"), true, trial{sameNode: true, sameAddress: true, took: 1}, ""},
		{"another node", pod("b", "10.0.0.2"), true, trial{took: 1}, "was on a as 10.0.0.1: db-0"},
		{"its node, another address", pod("a", "10.0.0.2"), true, trial{sameNode: true, took: 1}, "was on a"},
		{"pending", pod("", ""), false, trial{stuck: true, took: stuckAfter}, "stuck: db-0"},
		{"never recreated", nil, false, trial{stuck: true, took: stuckAfter}, "stuck: no pod"},
	} {
		got := judge(old, c.now, c.running, 1)
		if !strings.HasPrefix(got.why, c.why) || (c.why == "") != (got.why == "") {
			t.Errorf("%s: the reason is %q, want %q...", c.about, got.why, c.why)
		}
		if got.why = ""; got != c.want {
			t.Errorf("%s: %+v, want %+v", c.about, got, c.want)
		}
	}
}

func TestRow(t *testing.T) {
	var b strings.Builder
	row(&b, "require", []trial{{sameNode: true, sameAddress: true, took: time.Second},
		{sameNode: true, took: 2 * time.Second}, {stuck: true, took: stuckAfter}, {took: 3 * time.Second}})
	want := "require\t4\t2 (50 %)\t1 (25 %)\t2.00 s\t60.00 s\t60.00 s\t1\n"
	if b.String() != want {
		t.Errorf("got %q\nwant %q", b.String(), want)
	}
}
