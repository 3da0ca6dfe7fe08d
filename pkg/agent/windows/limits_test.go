package windows

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// Limits that are not valid, or not known yet, leave the former ones in effect.
func TestLimitsAreCopiedToTheStore(t *testing.T) {
	w, node, _, _ := newTask(t)
	limits := func(data policy.Limits) any {
		return &corev1.ConfigMap{Data: data,
			ObjectMeta: metav1.ObjectMeta{Namespace: kube.LimitsName.Namespace, Name: kube.LimitsName.Name}}
	}
	former := policy.Limits{"maxHeld": "20"}
	must.Succeed(t, node.SetLimits(t.Context(), former))
	stored := func() (l policy.Limits) {
		_ = node.Node.Store.View(context.Background(), func(tx *store.Tx) error { l = tx.Limits(); return nil })
		return l
	}
	for _, tt := range []struct {
		name   string
		listed []any // nil if nothing is listed
		want   policy.Limits
	}{
		{"they are not known", nil, former},
		{"they change", []any{limits(policy.Limits{"maxHeld": "21"})}, policy.Limits{"maxHeld": "21"}},
		{"not valid", []any{limits(policy.Limits{"maxHeld": "many"})}, policy.Limits{"maxHeld": "21"}},
		{"valid again", []any{limits(former)}, former},
		{"they cannot be decoded", []any{&kube.Undecodable{Err: kube.ErrUndecodable}}, former},
		{"they are removed", []any{}, nil},
	} {
		if tt.listed != nil {
			must.Succeed(t, w.Limits.Replace(tt.listed, ""))
		}
		if err := w.copyLimits(t.Context(), stored()); err != nil || !maps.Equal(stored(), tt.want) {
			t.Errorf("%s: %v, %v, want %v", tt.name, stored(), err, tt.want)
		}
	}
}

// Limits that are not valid are logged once, also if several values are not, and again when others
// are not.
func TestInvalidLimitsAreLoggedOnce(t *testing.T) {
	w, _, _, logged := newTask(t)
	for i, data := range []map[string]string{
		{"maxHeld": "many", "a.maxHeld": "some", "b.forever": "no", "c.choose": "yes", "d.maxWindow": "soon"},
		{"maxHeld": "more"},
	} {
		config := &corev1.ConfigMap{Data: data,
			ObjectMeta: metav1.ObjectMeta{Namespace: kube.LimitsName.Namespace, Name: kube.LimitsName.Name}}
		must.Succeed(t, w.Limits.Replace([]any{config}, ""))
		for range 20 {
			must.Succeed(t, w.copyLimits(t.Context(), nil))
		}
		check.Equal(t, strings.Count(logged.String(), "\n"), i+1, data, "lines in", logged)
	}
}

// TestLimitedWindowIsFollowed verifies that the agent cuts the window of a pod as the plugin does.
func TestLimitedWindowIsFollowed(t *testing.T) {
	view := maintain.NodeView{Leases: []lease.Lease{bound("u1", 0)}, Now: now,
		Limits: policy.Limits{"db.maxWindow": "30"}}
	got := makePlan(map[kube.Name]retention.Pod{name: pod("60")}, view, nil).Follow
	if len(got) != 1 || got[0].Window != lease.Window(30*time.Minute) ||
		got[0].WhyCut != "the window of 1h0m0s is cut to 30m0s, the limit of namespace db" {
		t.Errorf("follow %+v", got)
	}
}
