package pin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/kube/once"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Options are the settings of the pin on the command line of the manager.
type Options struct {
	Mode           policy.PinMode // for pods without a mode in their annotations or on their namespace
	Fallback       policy.PinMode // replaces nominate for pods of other schedulers; must not be nominate
	Schedulers     []string       // names of the schedulers that honour status.nominatedNodeName
	RequireTimeout time.Duration  // how long a pod of mode require may be unschedulable before its eviction
}

// sharedLogger returns base for every request. The default of the webhook server creates a logger
// for each request, which is not needed because the log lines about a pod name the pod.
func sharedLogger(base logr.Logger, _ *admission.Request) logr.Logger { return base }

// Setup adds the webhook and the controllers of the pin to a manager that has not started. The
// cache of the manager must have been created with CacheOptions.
func Setup(ctx context.Context, mgr manager.Manager, o Options) error {
	log := mgr.GetLogger().WithName("pin")
	c, err := newCluster(ctx, mgr, time.Now)
	if err != nil {
		return err
	}
	m, err := newCollectors(metrics.Registry, func() float64 { return float64(len(c.gatedPods())) })
	if err != nil {
		return err
	}
	err = mgr.AddReadyzCheck("pin", func(*http.Request) error {
		if !c.Synced() {
			return errors.New("pods, reservations, nodes or namespaces have not been listed yet")
		}
		return nil
	})
	if err != nil {
		return err
	}
	calls, redial, err := newCaller(mgr)
	if err != nil {
		return err
	}
	report := newReporter(mgr.GetEventRecorder("leasehold-manager"))
	n := &nominator{cluster: c, gates: newGateLimiter(time.Now), client: calls, live: calls, redial: redial,
		collectors: m,
		report:     report,
		log:        log, progress: map[types.UID]podProgress{}, retries: make(chan struct{}, retries)}
	w := &webhook{Options: o, cluster: c, gate: n.admit, collectors: m, log: log}
	mgr.GetWebhookServer().Register(webhookPath, &admission.Webhook{Handler: w.handler(), LogConstructor: sharedLogger})

	v := &evictor{cluster: c, client: mgr.GetClient(), timeout: o.RequireTimeout, collectors: m, report: report,
		log:     log,
		waiting: map[types.NamespacedName]wait{}}
	e := &explainer{cluster: c, report: report, reported: once.Set{Life: 2 * maxReportAge}}
	for _, c := range []interface{ setup(manager.Manager) error }{n, v, e} {
		if err := c.setup(mgr); err != nil {
			return err
		}
	}
	if err := mgr.Add(newNamer(c, mgr.GetAPIReader(), mgr.GetClient(), log)); err != nil {
		return err
	}
	gates := newLifter(mgr.GetAPIReader(), mgr.GetClient(), unseenGatesInterval/2, false)
	gates.cached = true // a pod is seen twice before its gate is lifted
	return mgr.Add(&sweeper{cluster: c, live: mgr.GetAPIReader(), client: mgr.GetClient(), log: log,
		limit: callTimeout, missing: map[types.UID]time.Time{}, gates: gates})
}

// newCaller returns a client without a cache for short calls, and a function that closes the idle
// connections of the client. The client does not share connections with other clients. It uses
// HTTP/1.1: a call that exceeds its deadline closes its connection, so that a broken connection
// does not delay later calls.
func newCaller(mgr manager.Manager) (c client.Client, redial func(), err error) {
	config := rest.CopyConfig(mgr.GetConfig())
	config.NextProtos = []string{"http/1.1"}
	httpClient, err := rest.HTTPClientFor(config)
	if err == nil {
		c, err = client.New(config, client.Options{HTTPClient: httpClient, Scheme: mgr.GetScheme(),
			Mapper: mgr.GetRESTMapper()})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reaching the API server: %w", err)
	}
	return c, func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) }, nil
}
