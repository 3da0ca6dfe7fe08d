package retention

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/kube/fakeapi"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func TestLimitsAreCopiedToTheStore(t *testing.T) {
	const path = "/api/v1/namespaces/leasehold-system/configmaps/leasehold-limits"
	node, server := fakeapi.NewNode(t), fakeapi.New(t)
	l := &Limits{Service: node.Service, Core: server.Clients.Core, Namespace: "leasehold-system",
		Name: "leasehold-limits", Log: fakeapi.Log}
	expect := func(what string, want policy.Limits) {
		t.Helper()
		l.pass(t.Context())
		err := node.Store.View(t.Context(), func(tx *store.Tx) error {
			if got := tx.Limits(); !maps.Equal(got, want) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(data map[string]string) {
		server.Put(path, corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "leasehold-system", Name: "leasehold-limits"}, Data: data})
	}
	expect("no ConfigMap", nil)
	put(map[string]string{"maxHeld": "20"})
	expect("a limit", policy.Limits{"maxHeld": "20"})
	put(map[string]string{"maxHeld": "many"})
	expect("not valid", policy.Limits{"maxHeld": "20"})
	server.Reject(fakeapi.Always(http.StatusForbidden))
	expect("not readable", policy.Limits{"maxHeld": "20"})
	server.Reject(nil)
	server.Remove(path)
	expect("removed", nil)
}

// TestLimitedWindowIsFollowed verifies that the agent cuts the window of a pod as the plugin does.
func TestLimitedWindowIsFollowed(t *testing.T) {
	view := maintain.NodeView{Leases: []lease.Lease{bound("u1", 0)}, Now: now,
		Limits: policy.Limits{"db.maxWindow": "30"}}
	got := makePlan(map[informer.Name]podcache.Pod{name: pod("60")}, view, nil).Follow
	if len(got) != 1 || got[0].Window != lease.Window(30*time.Minute) ||
		got[0].Limited != "the window of 1h0m0s is cut to 30m0s, the limit of namespace db" {
		t.Errorf("follow %+v", got)
	}
}

// TestLimitsRun runs the task, which reads the limits at once, until it is stopped.
func TestLimitsRun(t *testing.T) {
	node, server := fakeapi.NewNode(t), fakeapi.New(t)
	l := &Limits{Service: node.Service, Core: server.Clients.Core, Namespace: "leasehold-system",
		Name: "leasehold-limits", Log: fakeapi.Log}
	ctx, stop := context.WithCancel(t.Context())
	l.Connected = func(ctx context.Context) bool { return ctx.Err() == nil }
	server.Reject(func(*http.Request) int { stop(); return http.StatusForbidden })
	if err := l.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	want := []string{"GET /api/v1/namespaces/leasehold-system/configmaps/leasehold-limits"}
	if got := server.Requests(); !slices.Equal(got, want) {
		t.Errorf("requests %q, want %q", got, want)
	}
}
