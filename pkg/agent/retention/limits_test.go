package retention

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// limitsFixture runs the task with a fake API server.
type limitsFixture struct {
	node   fakeapi.Node
	server *fakeapi.Cluster
}

const limitsPath = "/api/v1/namespaces/leasehold-system/configmaps/leasehold-limits"

func newLimitsFixture(t *testing.T, client func(http.RoundTripper) http.RoundTripper) *limitsFixture {
	f := &limitsFixture{node: fakeapi.NewNode(t), server: fakeapi.NewCluster(t, fakeapi.Kind{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Resource: "configmaps", Namespaced: true})}
	config := rest.CopyConfig(f.server.Config)
	config.Wrap(client)
	clients, err := kube.NewClients(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &Windows{Service: f.node.Service, Pods: NewPods(clients.Core, "node1"), Log: fakeapi.Log,
		Limits: NewLimits(clients.Core)}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- w.Limits.Run(ctx) }()
	go func() { ended <- w.Run(ctx, nil) }()
	t.Cleanup(func() {
		stop()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	})
	return f
}

func (f *limitsFixture) put(data map[string]string) {
	f.server.Put(limitsPath, corev1.ConfigMap{Data: data})
}

func (f *limitsFixture) stored() (limits policy.Limits) {
	_ = f.node.Node.Store.View(context.Background(), func(tx *store.Tx) error {
		limits = tx.Limits()
		return nil
	})
	return limits
}

func (f *limitsFixture) expect(what string, want policy.Limits) {
	f.server.Until(what+fmt.Sprint(want), func() bool { return maps.Equal(f.stored(), want) })
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestLimitsAreCopiedToTheStore(t *testing.T) {
	var mu sync.Mutex
	var queries []url.Values
	f := newLimitsFixture(t, func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			queries = append(queries, r.URL.Query())
			return next.RoundTrip(r)
		})
	})
	f.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	f.put(map[string]string{"maxHeld": "20"})
	f.expect("a limit is stored: ", policy.Limits{"maxHeld": "20"})
	f.put(map[string]string{"maxHeld": "many"})
	f.put(map[string]string{"maxHeld": "21"})
	f.expect("after a limit that is not valid: ", policy.Limits{"maxHeld": "21"})
	f.server.Remove(limitsPath)
	f.expect("it is removed: ", nil)
	mu.Lock()
	defer mu.Unlock()
	for _, q := range queries { // a list and a watch; more would be periodic reads
		if q.Get("fieldSelector") != "metadata.name=leasehold-limits" || len(queries) > 2 {
			t.Errorf("requests %v", queries)
		}
	}
}

// Limits that are not valid, or cannot be read, leave the former ones in effect.
func TestFormerLimitsStay(t *testing.T) {
	lists := make(chan struct{}, 100)
	f := newLimitsFixture(t, func(http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			lists <- struct{}{}
			return nil, errors.New("away")
		})
	})
	former := policy.Limits{"maxHeld": "20"}
	if err := f.node.Service.SetLimits(t.Context(), former); err != nil {
		t.Fatal(err)
	}
	<-lists
	<-lists
	if got := f.stored(); !maps.Equal(got, former) {
		t.Errorf("limits %v, want the former ones", got)
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
