package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/must"
)

// An API server that rejects the requests of an agent that starts gets few of them.
func TestStartWithABusyAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		requests := map[string]int{}
		busy := roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			requests[r.URL.Path]++
			w := httptest.NewRecorder()
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return w.Result(), nil
		})
		log := slog.New(slog.DiscardHandler)
		o := options{nodeName: "node1", moveGrace: time.Minute}
		service := fakeapi.NewNode(t).Service
		node := agent.Node{Service: service, Changes: agent.NewChanges(service.Node.Store.Dirs(), log), Log: log,
			Metrics: prometheus.NewRegistry()}
		tasks, err := kubeTasks(node, &rest.Config{Host: "http://api", Transport: busy}, o, newWatcher(node, o))
		must.Succeed(t, err)
		names := map[string]bool{}
		others := nodeTasks(node, nil, nil, options{metricsAddr: ":0"}, nil, &agent.Health{})
		for _, task := range append(others, tasks...) {
			if names[task.Name] {
				t.Errorf("two tasks are called %s", task.Name)
			}
			names[task.Name] = true
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(2500*time.Millisecond, stop)
		must.Succeed(t, agent.Run(ctx, log, tasks))
		if n := requests["/api/v1/pods"]; n < 1 || n > 3 || len(requests) > 1 {
			t.Errorf("requests: %v; want 1 to 3 lists of pods", requests)
		}
	})
}

// roundTripper is an API server without a network, for which the time of a bubble would not pass.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
