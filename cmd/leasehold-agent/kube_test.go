package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/pkg/kube/fakeapi"
)

// An API server that rejects the requests of an agent that starts gets few of them.
func TestStartWithABusyAPIServer(t *testing.T) {
	var mu sync.Mutex
	requests := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		requests[r.URL.Path]++
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	}))
	defer server.Close()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	o := options{nodeName: "node1", limits: "leasehold-system/leasehold-limits", moveGrace: time.Minute}
	service := fakeapi.NewNode(t).Service
	node := agent.Node{Service: service, Changes: agent.NewChanges(service.Store.Dirs(), log), Log: log,
		Metrics: prometheus.NewRegistry()}
	tasks, err := kubeTasks(node, &rest.Config{Host: server.URL}, o, newWatcher(node, o))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(2500*time.Millisecond, stop)
	if err := agent.Run(ctx, log, tasks); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if n := requests["/api/v1/pods"]; n < 1 || n > 3 || len(requests) > 1 {
		t.Errorf("requests: %v; want 1 to 3 lists of pods", requests)
	}
}
