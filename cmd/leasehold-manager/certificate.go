package main

import (
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// certificate has the certificate that the webhook server presents now. It comes from a Secret,
// which must exist and may have no data.
type certificate struct {
	dir     string // a writable directory for the certificate; the private key is not written
	log     logr.Logger
	expires prometheus.Gauge
	current atomic.Pointer[tls.Certificate]
	ready   chan struct{}
}

// newCertificate returns a certificate that is not there yet. add adds the controllers that provide
// it.
func newCertificate(dir string, log logr.Logger) *certificate {
	return &certificate{dir: dir, log: log.WithName("certs"), ready: make(chan struct{}),
		expires: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "leasehold_webhook_certificate_expiration_timestamp_seconds",
			Help: "When the certificate of the webhooks expires. 0 while there is none.",
		})}
}

// configure configures a server for TLS 1.3 with the current certificate. Handshakes fail while
// there is none.
func (c *certificate) configure(config *tls.Config) {
	config.MinVersion = tls.VersionTLS13
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if cert := c.current.Load(); cert != nil {
			return cert, nil
		}
		return nil, errNoCertificate
	}
}

var errNoCertificate = errors.New("the webhooks have no certificate yet")

// isReady is a readiness check. It returns an error until there is a certificate and the webhook
// configurations contain its CA.
func (c *certificate) isReady(*http.Request) error {
	select {
	case <-c.ready:
	default:
		return errors.New("the CA is not in the webhook configurations yet")
	}
	if c.current.Load() == nil {
		return errNoCertificate
	}
	return nil
}

// add adds the controllers that create, rotate and watch the certificate to the manager. They run
// in every replica, without leader election: if two replicas write to the Secret at the same time,
// the API server rejects one of the writes.
func (c *certificate) add(mgr manager.Manager) error {
	secrets := kube.NewInformer(func(s *corev1.Secret) *corev1.Secret { return s }, nil)
	secrets.Handle(kube.Handler[*corev1.Secret]{Added: c.load,
		Updated: func(_, now *corev1.Secret) { c.load(now) }})
	err := control.Watch(mgr, secrets, "certificates", control.Objects{
		Kind: corev1.SchemeGroupVersion.WithKind("Secret"), Resource: "secrets", Namespace: kube.Namespace,
		Field: ownName})
	return errors.Join(err, rotator.AddRotator(byName{mgr}, &rotator.CertRotator{
		SecretKey:      kube.Name{Namespace: kube.Namespace, Name: kube.ManagerName},
		CertDir:        c.dir,
		CAName:         "leasehold-ca",
		CAOrganization: "leasehold",
		DNSName:        kube.ManagerName + "." + kube.Namespace + ".svc",
		IsReady:        c.ready,
		Webhooks:       []rotator.WebhookInfo{{Name: kube.ManagerName, Type: rotator.Mutating}},
		FieldOwner:     "leasehold-manager",
	}))
}

// ownName selects the objects of the manager's own name.
const ownName = "metadata.name=" + kube.ManagerName

// byName is a manager whose GetConfig returns a configuration that restricts lists and watches of
// Secrets and MutatingWebhookConfigurations to objects with the name kube.ManagerName.
// cert-controller watches all objects of a kind in a namespace, but the role of the manager allows
// it to watch only those objects.
type byName struct{ manager.Manager }

// GetConfig returns the configuration with which cert-controller creates its cache.
func (m byName) GetConfig() *rest.Config {
	config := rest.CopyConfig(m.Manager.GetConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			switch path.Base(r.URL.Path) {
			case "secrets", "mutatingwebhookconfigurations":
				r = r.Clone(r.Context())
				query := r.URL.Query()
				query.Set("fieldSelector", ownName)
				r.URL.RawQuery = query.Encode()
			}
			return next.RoundTrip(r)
		})
	})
	return config
}

// load makes the server present the certificate in a Secret. If the certificate is invalid, load
// logs the error, and the server continues to present the former one.
func (c *certificate) load(secret *corev1.Secret) {
	if len(secret.Data[corev1.TLSCertKey]) == 0 {
		return // cert-controller has not created the certificate yet
	}
	cert, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err == nil {
		// cert-controller does not become ready until the certificate is in CertDir.
		err = os.WriteFile(filepath.Join(c.dir, corev1.TLSCertKey), secret.Data[corev1.TLSCertKey], 0o600)
	}
	if err != nil {
		c.log.Error(err, "loading the certificate failed", "secret", secret.Name)
		return
	}
	c.current.Store(&cert)
	c.expires.Set(float64(cert.Leaf.NotAfter.Unix()))
	c.log.Info("serving a new certificate", "notAfter", cert.Leaf.NotAfter)
}
