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

	"github.com/leasehold-cni/leasehold/pkg/daemon"
)

// TestServeLimitsConnections opens more connections than daemon.MaxConns: the agent closes
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
		ended <- Serve(addr, prometheus.NewRegistry(), &Health{}, slog.New(slog.DiscardHandler)).Run(ctx)
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	until(t, "it serves", func() bool {
		r, err := http.Get("http://" + addr + "/healthz")
		if err == nil {
			r.Body.Close()
		}
		return err == nil
	})
	const conns = daemon.MaxConns + 1
	closed := make(chan struct{}, conns)
	for range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// After a request only the limit, or IdleTimeout, closes the connection.
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		go func() {
			io.Copy(io.Discard, c)
			closed <- struct{}{}
		}()
	}
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Errorf("the agent has %d open connections", conns)
	}
}
