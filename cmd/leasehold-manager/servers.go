package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
)

// maxWebhookConns is the maximum number of open connections of the webhooks. An API server uses one
// for each pod that is being created, because it speaks HTTP/1.1 with webhooks, and has at most 600
// requests at a time by default.
const maxWebhookConns = 1024

// maxWebhookBytes is the maximum size of the requests that the webhooks serve at a time. Half of it
// is for one API server: hundreds of usual pods, or fifteen of the largest.
const maxWebhookBytes = 48 << 20

// A servingManager is a manager whose ports have limits of connections. The servers of
// controller-runtime have none, and listen themselves.
type servingManager struct {
	ctrl.Manager
	ready []healthz.Checker
}

// AddReadyzCheck adds a check to /readyz. It must be called before the manager starts.
func (m *servingManager) AddReadyzCheck(_ string, check healthz.Checker) error {
	m.ready = append(m.ready, check)
	return nil
}

// isReady returns nil if all checks succeed.
func (m *servingManager) isReady() error {
	var errs []error
	for _, check := range m.ready {
		errs = append(errs, check(nil)) // none looks at the request
	}
	return errors.Join(errs...)
}

// addServer adds the server of metrics, /healthz and /readyz.
func (m *servingManager) addServer(addr string) error {
	s, err := newServer("status", addr, daemon.MaxConns, daemon.Status(metrics.Registry, m.isReady), nil)
	if err != nil {
		return fmt.Errorf("--metrics-addr: %w", err)
	}
	return m.Add(s)
}

// newServer listens at an address, and returns a server for that. It serves HTTPS if config is not
// nil, and runs in every replica.
func newServer(name, addr string, conns int, handler http.Handler, config *tls.Config) (*manager.Server, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	return &manager.Server{Name: name, Server: daemon.New(handler, conns), Listener: listener,
		ShutdownTimeout: new(10 * time.Second)}, nil
}

// A webhookServer serves webhooks with a limit of connections. Embedded is the server of
// controller-runtime, of which only the registered handlers are used.
type webhookServer struct {
	webhook.Server
	port int
	tls  tls.Config
}

// Start implements webhook.Server.
func (s *webhookServer) Start(ctx context.Context) error {
	server, err := newServer("webhooks", fmt.Sprintf(":%d", s.port), maxWebhookConns,
		daemon.LimitBodies(s.WebhookMux(), maxWebhookBytes), &s.tls)
	if err != nil {
		return fmt.Errorf("--webhook-port: %w", err)
	}
	return server.Start(ctx)
}
