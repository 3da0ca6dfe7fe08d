package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/pkg/httpserver"
)

// TestServeLimitsConnections opens more connections than httpserver.MaxConns: the agent closes
// some.
func TestServeLimitsConnections(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- Serve(addr, prometheus.NewRegistry(), &Health{}, nil, slog.New(slog.DiscardHandler)).Run(ctx)
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		r, err := http.Get("http://" + addr + "/healthz")
		if err == nil {
			r.Body.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	var all []net.Conn
	for range httpserver.MaxConns + 1 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	closed := make(chan struct{}, len(all))
	for _, c := range all {
		go func() {
			io.Copy(io.Discard, c)
			closed <- struct{}{}
		}()
	}
	select {
	case <-closed:
	case <-time.After(5 * time.Second): // before the server's ReadTimeout
		t.Errorf("the agent has %d open connections", len(all))
	}
}
