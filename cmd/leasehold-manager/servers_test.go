package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
)

// freePort returns a TCP port on which nothing listens, and which the kernel assigns to no client.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10000 + rand.IntN(20000)
		if l, err := net.Listen("tcp", fmt.Sprint(":", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

// newTestManager returns the manager of a command line, with its options.
func newTestManager(t *testing.T, args ...string) (*servingManager, options) {
	t.Helper()
	o, code, _, stderr := parse(args...)
	if code != 0 {
		t.Fatal(stderr)
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, found := map[string]string{"/api": `{"versions":["v1"]}`, "/apis": `{"kind":"APIGroupList"}`,
			"/api/v1": `{"resources":[{"name":"secrets","namespaced":true,"kind":"Secret"}]}`}[r.URL.Path]
		if !found {
			w.WriteHeader(http.StatusNotFound)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(api.Close)
	mgr, err := newManager(&rest.Config{Host: api.URL}, *o, newCertificate(*o, logr.Discard()), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return mgr, *o
}

// startServers starts a manager that has only its servers. The webhooks have a certificate.
func startServers(t *testing.T, args ...string) {
	t.Helper()
	mgr, o := newTestManager(t, args...)
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	mgr.GetWebhookServer().(*webhookServer).tls.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &server.TLS.Certificates[0], nil
	}
	if err := mgr.addServer(o.metricsAddr); err != nil {
		t.Fatal(err)
	}
	if err := mgr.AddReadyzCheck("never", func(*http.Request) error { return io.EOF }); err != nil {
		t.Fatal(err)
	}
	mgr.GetWebhookServer().Register("/pin", http.NotFoundHandler())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// wait waits until something listens at an address.
func wait(t *testing.T, addr string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestPortServes gets what probes and Prometheus get.
func TestPortServes(t *testing.T) {
	addr := fmt.Sprint("127.0.0.1:", freePort(t))
	startServers(t, fmt.Sprint("--webhook-port=", freePort(t)), "--metrics-addr="+addr)
	wait(t, addr)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 200, "/": 404} {
		r, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, r.StatusCode, want)
		}
	}
}
