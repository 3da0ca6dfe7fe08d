package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/test/must"
)

// newSecret returns a Secret as cert-controller fills it, and a pool with its CA.
func newSecret(t *testing.T, name string) (*corev1.Secret, *x509.CertPool) {
	t.Helper()
	r := &rotator.CertRotator{CAName: "ca", CAOrganization: "leasehold", DNSName: name,
		ExtKeyUsages: &[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	ca, err := r.CreateCACert(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	must.Succeed(t, err)
	cert, key, err := r.CreateCertPEM(ca, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	must.Succeed(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return &corev1.Secret{Data: map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ca.CertPEM}}, pool
}

// dial performs a TLS handshake with a server that c configures.
func dial(t *testing.T, c *certificate, client *tls.Config) error {
	t.Helper()
	config := &tls.Config{}
	c.configure(config)
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	go tls.Server(there, config).Handshake()
	here.SetDeadline(time.Now().Add(time.Minute))
	return tls.Client(here, client).Handshake()
}

func TestServesTheNewestCertificate(t *testing.T) {
	c := newCertificate(t.TempDir(), logr.Discard())
	if err := dial(t, c, &tls.Config{InsecureSkipVerify: true}); err == nil {
		t.Error("handshake without a certificate succeeded")
	}
	c.load(&corev1.Secret{}) // not filled yet
	if err := c.isReady(nil); err == nil {
		t.Error("ready without a certificate")
	}

	first, firstCA := newSecret(t, "manager.system.svc")
	c.load(first)
	if err := dial(t, c, &tls.Config{RootCAs: firstCA, ServerName: "manager.system.svc"}); err != nil {
		t.Error(err)
	}
	if err := dial(t, c, &tls.Config{RootCAs: firstCA, ServerName: "manager.system.svc",
		MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("handshake with TLS 1.2 succeeded")
	}
	if _, err := os.Stat(filepath.Join(c.dir, "tls.crt")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(c.dir, "tls.key")); err == nil {
		t.Error("the key was written to disk")
	}

	block, _ := pem.Decode(first.Data["tls.crt"])
	cert, err := x509.ParseCertificate(block.Bytes)
	must.Succeed(t, err)
	if got, want := testutil.ToFloat64(c.expires), float64(cert.NotAfter.Unix()); got != want {
		t.Errorf("the certificate expires at %v by the metric, want %v", got, want)
	}

	second, secondCA := newSecret(t, "manager.system.svc")
	c.load(second)
	if err := dial(t, c, &tls.Config{RootCAs: secondCA, ServerName: "manager.system.svc"}); err != nil {
		t.Error(err)
	}
	c.load(&corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("damaged"), "tls.key": second.Data["tls.key"]}})
	if err := dial(t, c, &tls.Config{RootCAs: secondCA, ServerName: "manager.system.svc"}); err != nil {
		t.Errorf("a damaged Secret replaced the certificate: %v", err)
	}
	if err := c.isReady(nil); err == nil {
		t.Error("ready before the CA is in the webhook configurations")
	}
	close(c.ready)
	if err := c.isReady(nil); err != nil {
		t.Error(err)
	}
}

// TestWebhookClients calls a webhook with --webhook-client-ca with a certificate of that CA, of
// another one, and without one.
func TestWebhookClients(t *testing.T) {
	var own, other tls.Certificate
	file := filepath.Join(t.TempDir(), "ca.crt")
	for _, client := range []*tls.Certificate{&other, &own} {
		secret, _ := newSecret(t, "api")
		pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
		if err = errors.Join(err, os.WriteFile(file, secret.Data["ca.crt"], 0o600)); err != nil {
			t.Fatal(err)
		}
		*client = pair
	}
	config := &tls.Config{Certificates: []tls.Certificate{own}}
	must.Succeed(t, requireClients(config, file))
	for name, certificates := range map[string][]tls.Certificate{"own": {own}, "other": {other}, "none": nil} {
		here, there := net.Pipe()
		server := tls.Server(there, config)
		go io.Copy(io.Discard, tls.Client(here, &tls.Config{InsecureSkipVerify: true, Certificates: certificates}))
		there.SetDeadline(time.Now().Add(time.Minute))
		here.SetDeadline(time.Now().Add(time.Minute))
		if err := server.Handshake(); (err == nil) != (name == "own") {
			t.Errorf("certificate %s: %v", name, err)
		}
		here.Close()
		there.Close()
	}
	must.Succeed(t, os.WriteFile(file, []byte("none"), 0o600))
	if requireClients(config, file) == nil {
		t.Error("a file without a certificate is accepted")
	}
}
