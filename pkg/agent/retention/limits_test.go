package retention

import (
	"context"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// Limits that are not valid, or not known yet, leave the former ones in effect.
func TestLimitsAreCopiedToTheStore(t *testing.T) {
	node := fakeapi.NewNode(t)
	w := &Windows{Service: node.Service, Limits: NewLimits(nil), Log: fakeapi.Log}
	limits := func(data policy.Limits) any {
		return &corev1.ConfigMap{Data: data,
			ObjectMeta: metav1.ObjectMeta{Namespace: limitsName.Namespace, Name: limitsName.Name}}
	}
	former := policy.Limits{"maxHeld": "20"}
	if err := node.SetLimits(t.Context(), former); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, tt := range []struct {
		name   string
		listed []any // nil if nothing is listed
		lost   bool  // the store has other limits
		after  time.Duration
		want   policy.Limits
	}{
		{"they are not known", nil, false, 0, former},
		{"they change", []any{limits(policy.Limits{"maxHeld": "21"})}, false, 0, policy.Limits{"maxHeld": "21"}},
		{"not valid", []any{limits(policy.Limits{"maxHeld": "many"})}, false, 0, policy.Limits{"maxHeld": "21"}},
		{"valid again", []any{limits(former)}, false, 0, former},
		{"the store is new", nil, true, limitsInterval, former},
		{"they are removed", []any{}, false, 0, nil},
	} {
		if tt.listed != nil {
			if err := w.Limits.Replace(tt.listed, ""); err != nil {
				t.Fatal(err)
			}
		}
		if tt.lost {
			if err := node.SetLimits(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(tt.after)
		w.copyLimits(t.Context(), now)
		_ = node.Node.Store.View(context.Background(), func(tx *store.Tx) error {
			if got := tx.Limits(); !maps.Equal(got, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
			}
			return nil
		})
	}
}

// TestLimitedWindowIsFollowed verifies that the agent cuts the window of a pod as the plugin does.
func TestLimitedWindowIsFollowed(t *testing.T) {
	view := maintain.NodeView{Leases: []lease.Lease{bound("u1", 0)}, Now: now,
		Limits: policy.Limits{"db.maxWindow": "30"}}
	got := makePlan(map[kube.Name]Pod{name: pod("60")}, view, nil).Follow
	if len(got) != 1 || got[0].Window != lease.Window(30*time.Minute) ||
		got[0].Limited != "the window of 1h0m0s is cut to 30m0s, the limit of namespace db" {
		t.Errorf("follow %+v", got)
	}
}
