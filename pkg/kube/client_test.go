package kube

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

// A request that the API server rejects because it has too many is not repeated by client-go.
func TestRejectedRequestIsNotRepeated(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
	}))
	defer server.Close()
	clients, err := NewClients(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	err = clients.Core.Get().Resource("nodes").Name("a").Do(t.Context()).Error()
	if !apierrors.IsTooManyRequests(err) || requests.Load() != 1 {
		t.Errorf("%d requests: %v", requests.Load(), err)
	}
}
