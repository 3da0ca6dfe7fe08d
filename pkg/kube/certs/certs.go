// Package certs gives the webhooks their certificate. cert-controller makes a CA and a certificate, rotates both, keeps
// them in a Secret and writes the CA into the webhook configurations; the server takes the certificate from a watch of
// that Secret, so that a new one is served a moment later, in every replica, and no volume has to be refreshed first.
package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Options names what is served and where it is kept.
type Options struct {
	Secret   types.NamespacedName // exists, if only empty
	Service  string               // in the namespace of the Secret
	Mutating []string             // names of MutatingWebhookConfigurations; one that does not exist is waited for
	Dir      string               // writable; gets the certificate, never a key
}

// DNSName is the name under which the API server calls the Service.
func (o Options) DNSName() string { return o.Service + "." + o.Secret.Namespace + ".svc" }

// CacheOptions is what of Secrets the manager's cache may hold: this one.
func (o Options) CacheOptions() cache.ByObject {
	return cache.ByObject{
		Namespaces: map[string]cache.Config{o.Secret.Namespace: {}},
		Field:      fields.OneTermEqualSelector("metadata.name", o.Secret.Name),
	}
}

// Certificate is the one that is served at the moment.
type Certificate struct {
	dir     string
	log     logr.Logger
	current atomic.Pointer[tls.Certificate]
	ready   chan struct{}
}

// New prepares the server's side; Add starts what fills it.
func New(dir string) *Certificate { return &Certificate{dir: dir, ready: make(chan struct{})} }

// TLS is how the webhooks are served: TLS 1.3, with the certificate of the moment.
func (c *Certificate) TLS(config *tls.Config) {
	config.MinVersion = tls.VersionTLS13
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if cert := c.current.Load(); cert != nil {
			return cert, nil
		}
		return nil, errNone
	}
}

var errNone = errors.New("the webhooks have no certificate yet")

// Ready tells whether the webhooks can be called: there is a certificate, and the API server knows its CA.
func (c *Certificate) Ready(*http.Request) error {
	select {
	case <-c.ready:
	default:
		return errors.New("the CA is not in the webhook configurations yet")
	}
	if c.current.Load() == nil {
		return errNone
	}
	return nil
}

// Add has the manager make, rotate and watch the certificate. It needs no leader: the writes of two replicas cannot both
// succeed.
func (c *Certificate) Add(ctx context.Context, mgr manager.Manager, o Options) error {
	c.log = mgr.GetLogger().WithName("certs")
	secrets, err := mgr.GetCache().GetInformer(ctx, &corev1.Secret{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching the certificate: %w", err)
	}
	_, err = secrets.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    c.load,
		UpdateFunc: func(_, now any) { c.load(now) },
	})
	if err != nil {
		return err
	}
	var hooks []rotator.WebhookInfo
	for _, name := range o.Mutating {
		hooks = append(hooks, rotator.WebhookInfo{Name: name, Type: rotator.Mutating})
	}
	return rotator.AddRotator(mgr, &rotator.CertRotator{
		SecretKey:      o.Secret,
		CertDir:        c.dir,
		CAName:         "leasehold-ca",
		CAOrganization: "leasehold",
		DNSName:        o.DNSName(),
		IsReady:        c.ready,
		Webhooks:       hooks,
		FieldOwner:     "leasehold-manager",
	})
}

// load takes a certificate into use. What cannot be read changes nothing.
func (c *Certificate) load(object any) {
	secret, ok := object.(*corev1.Secret)
	if !ok || len(secret.Data[corev1.TLSCertKey]) == 0 {
		return // not made yet
	}
	cert, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err == nil {
		// cert-controller waits until the certificate has arrived in a folder.
		err = os.WriteFile(filepath.Join(c.dir, corev1.TLSCertKey), secret.Data[corev1.TLSCertKey], 0o600)
	}
	if err != nil {
		c.log.Error(err, "the certificate cannot be used", "secret", secret.Name)
		return
	}
	c.current.Store(&cert)
	c.log.Info("serving a certificate", "until", cert.Leaf.NotAfter)
}
