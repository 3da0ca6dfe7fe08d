package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

func TestIsTransient(t *testing.T) {
	for code, want := range map[int]bool{500: true, 503: true, 429: true, 504: true, 403: false, 404: false, 409: false,
		422: false} {
		err := apierrors.NewGenericServerResponse(code, "PATCH", schema.GroupResource{}, "n", "", 0, true)
		if got := IsTransient(err); got != want {
			t.Errorf("%d: %v, want %v", code, got, want)
		}
	}
	if !IsTransient(fmt.Errorf("reading: %w", errUnreachable)) || !IsTransient(apierrors.NewTimeoutError("slow", 1)) {
		t.Error("no response, or a timeout, is not transient")
	}
	if IsTransient(errors.New("parsing time")) || IsTransient(nil) {
		t.Error("an error that is not of a request is transient")
	}
}

var errUnreachable = &url.Error{Op: "Get", URL: "https://10.96.0.1", Err: syscall.ECONNREFUSED}

// One request that fails says nothing about others; two in a row without an answer do.
func TestOutage(t *testing.T) {
	response := func(code int) error {
		return apierrors.NewGenericServerResponse(code, "PATCH", schema.GroupResource{}, "n", "", 0, true)
	}
	var o Outage
	for i, c := range []struct {
		err  error
		away bool
	}{
		{errUnreachable, false}, {nil, false}, {response(503), false}, {response(403), false}, {errUnreachable, false},
		{errors.New("the store is busy"), false}, {response(504), false}, {errUnreachable, true}, {response(503), true},
		{response(500), false}, {response(500), false}, {response(429), true},
	} {
		if away := o.Observe(c.err); away != c.away {
			t.Errorf("%d: %v: away %t, want %t", i, c.err, away, c.away)
		}
	}
}
