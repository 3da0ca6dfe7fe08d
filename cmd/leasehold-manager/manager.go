package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/manager/nodepools"
	"github.com/leasehold-cni/leasehold/pkg/manager/pin"
)

func run(ctx context.Context, o options, to *slog.Logger) error {
	log := logr.FromSlogHandler(to.Handler())
	ctrl.SetLogger(log)
	klog.SetLoggerWithOptions(log, klog.ContextualLogger(true))
	log.Info("leasehold-manager", "version", version)
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("reaching the API server: %w", err)
	}
	config.UserAgent = kube.ManagerName
	// No limit in the client: the API server has its own, and the writers limit themselves.
	config.QPS = -1

	certificate := newCertificate(o.certDir, log)
	mgr, err := newManager(config, o, certificate, log)
	if err != nil {
		return err
	}
	err = errors.Join(mgr.addServer(o.metricsAddr), certificate.add(mgr),
		metrics.Registry.Register(certificate.expires),
		metrics.Registry.Register(kube.LeftOut), mgr.AddReadyzCheck("certificate", certificate.isReady))
	if err != nil {
		return err
	}
	nodes, nodesErr := control.WatchNodes(mgr)
	set, setErr := control.WatchReservations(mgr)
	unconfirmed, poolsErr := nodepools.Setup(mgr, set, nodes)
	err = errors.Join(nodesErr, setErr, poolsErr, pin.Setup(mgr, set, nodes, unconfirmed, o.pin),
		o.persistentPodState.Setup(mgr, nodes))
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func newManager(config *rest.Config, o options, certificate *certificate, log logr.Logger) (*servingManager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), ipam.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	webhooks := &webhookServer{Server: webhook.NewServer(webhook.Options{}), port: o.webhookPort}
	certificate.configure(&webhooks.tls)
	if o.webhookCA != "" {
		if err := requireClients(&webhooks.tls, o.webhookCA); err != nil {
			return nil, fmt.Errorf("--webhook-client-ca: %w", err)
		}
	}
	mgr, err := ctrl.NewManager(config, manager.Options{
		Scheme: scheme,
		Logger: log,
		// The servers of controller-runtime have no limit of connections, see servingManager.
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:        "0",
		PprofBindAddress:              o.pprofAddr,
		WebhookServer:                 webhooks,
		LeaderElection:                true,
		LeaderElectionID:              kube.ManagerName,
		LeaderElectionNamespace:       kube.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 new(leaseDuration),
		RenewDeadline:                 new(renewDeadline),
		RetryPeriod:                   new(retryPeriod),
	})
	return &servingManager{Manager: mgr}, err
}

// requireClients configures a server for clients with a certificate of the CA in a file.
func requireClients(c *tls.Config, file string) error {
	ca, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(ca) {
		return fmt.Errorf("%s has no PEM certificate", file)
	}
	return nil
}

// A leader that does not renew its lease within the deadline ends, and serves no webhook until it
// runs again. So the deadline outlasts an API server that takes some seconds for each call, and a
// connection that has died without notice. Each call may take half of it.
const (
	leaseDuration = 30 * time.Second
	renewDeadline = 25 * time.Second
	retryPeriod   = 2 * time.Second
)
