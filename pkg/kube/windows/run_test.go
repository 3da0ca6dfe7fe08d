package windows

import (
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube/apitest"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func TestAPassFollowsThePods(t *testing.T) {
	node := apitest.NewNode(t)
	var wrong []string
	w := &Windows{Service: node.Service, Pods: nodepods.New(nil, "node1", apitest.Log), Log: apitest.Log,
		Invalid: func(p nodepods.Pod, _ error) { wrong = append(wrong, p.Asked) }}
	pods := func(asked string) {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u1", ResourceVersion: "1",
			Annotations: map[string]string{policy.Annotation: asked}}}
		if err := w.Pods.Replace([]any{p}, ""); err != nil {
			t.Fatal(err)
		}
	}
	window := func() (window time.Duration) {
		t.Helper()
		v, err := node.Look(t.Context(), func(l lease.Lease) bool { return l.Name == "db-0" })
		if err != nil || len(v.Leases) != 1 {
			t.Fatalf("%v, %v", v.Leases, err)
		}
		return v.Leases[0].Window
	}
	expect := func(story string, again, want time.Duration) {
		t.Helper()
		if got := w.pass(t.Context()); got != again {
			t.Errorf("%s: again in %s, want %s", story, got, again)
		}
		if got := window(); got != want {
			t.Errorf("%s: the window is %s, want %s", story, got, want)
		}
	}
	node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	expect("the pods are not known yet", 0, time.Hour)
	pods("10")
	expect("another window", 0, 10*time.Minute)
	before, err := os.Stat(node.Store.Dirs().State + "/leases.db")
	if err != nil {
		t.Fatal(err)
	}
	expect("again", 0, 10*time.Minute)
	if after, err := os.Stat(node.Store.Dirs().State + "/leases.db"); err != nil || after.ModTime() != before.ModTime() {
		t.Errorf("what is so already was written: %v", err)
	}
	pods("soon")
	expect("a wrong word", 0, 10*time.Minute)
	if !slices.Equal(wrong, []string{"soon"}) {
		t.Errorf("told of %q", wrong)
	}
	node.Release(node.Bind("10.0.0.2", "db-0", "u0", time.Minute, ""))
	pods("1")
	view := func() time.Duration {
		v, err := node.Look(t.Context(), func(lease.Lease) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		return v.Leases[0].Remaining(v.Now)
	}
	w.pass(t.Context())
	if rest := view(); rest <= time.Minute {
		t.Errorf("the pod is expected back, and %s is left", rest)
	}

	if err := os.Truncate(node.Store.Dirs().State+"/leases.db", 100); err != nil {
		t.Fatal(err)
	}
	if again := w.pass(t.Context()); again != retry {
		t.Errorf("the store is lost: again in %s", again)
	}
	node.Update(func(*store.Tx) error { return nil })
	if again := w.pass(t.Context()); again != 0 {
		t.Errorf("the store is empty: again in %s", again)
	}
}
