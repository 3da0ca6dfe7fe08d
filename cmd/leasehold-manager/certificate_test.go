package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/test/check"
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
	must.Succeed(t, dial(t, c, &tls.Config{RootCAs: firstCA, ServerName: "manager.system.svc"}))
	if err := dial(t, c, &tls.Config{RootCAs: firstCA, ServerName: "manager.system.svc",
		MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("handshake with TLS 1.2 succeeded")
	}
	_, err := os.Stat(filepath.Join(c.dir, "tls.crt"))
	must.Succeed(t, err)
	if _, err := os.Stat(filepath.Join(c.dir, "tls.key")); err == nil {
		t.Error("the key was written to disk")
	}

	block, _ := pem.Decode(first.Data["tls.crt"])
	cert, err := x509.ParseCertificate(block.Bytes)
	must.Succeed(t, err)
	check.Equal(t, testutil.ToFloat64(c.expires), float64(cert.NotAfter.Unix()), "the metric of the expiry")

	second, secondCA := newSecret(t, "manager.system.svc")
	c.load(second)
	must.Succeed(t, dial(t, c, &tls.Config{RootCAs: secondCA, ServerName: "manager.system.svc"}))
	c.load(&corev1.Secret{Data: map[string][]byte{"tls.crt": []byte("damaged"), "tls.key": second.Data["tls.key"]}})
	must.Succeed(t, dial(t, c, &tls.Config{RootCAs: secondCA, ServerName: "manager.system.svc"}), "a damaged Secret")
	if err := c.isReady(nil); err == nil {
		t.Error("ready before the CA is in the webhook configurations")
	}
	close(c.ready)
	must.Succeed(t, c.isReady(nil))
}

// A secretAPI is the API server of a manager that does not start. It has the Secret of the manager.
type secretAPI struct {
	manager.Manager
	added []manager.Runnable
	first *corev1.Secret
	next  chan *corev1.Secret // sent to the watch
}

func (a *secretAPI) Add(r manager.Runnable) error { a.added = append(a.added, r); return nil }

// RoundTrip serves the list and the watch of the Secret.
func (a *secretAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	code, query := http.StatusOK, r.URL.Query()
	body, write := io.Pipe()
	context.AfterFunc(r.Context(), func() { write.Close() })
	switch to := json.NewEncoder(write); {
	case path.Base(r.URL.Path) != "secrets" || query.Get("fieldSelector") != ownName:
		code = http.StatusForbidden
		write.Close()
	case query.Get("sendInitialEvents") != "":
		code = http.StatusBadRequest
		write.Close()
	case query.Get("watch") != "":
		go func() { to.Encode(map[string]any{"type": "MODIFIED", "object": <-a.next}) }()
	default:
		go func() {
			to.Encode(corev1.SecretList{ListMeta: metav1.ListMeta{ResourceVersion: "1"},
				Items: []corev1.Secret{*a.first}})
			write.Close()
		}()
	}
	return &http.Response{StatusCode: code, Body: body, Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

// The server presents what is in the Secret, from the beginning and after each change.
func TestCertificateFollowsItsSecret(t *testing.T) {
	first, firstCA := newSecret(t, "manager")
	second, secondCA := newSecret(t, "manager")
	for i, s := range []*corev1.Secret{first, second} {
		s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}
		s.ObjectMeta = metav1.ObjectMeta{Namespace: kube.Namespace, Name: kube.ManagerName, UID: "s1",
			ResourceVersion: fmt.Sprint(i + 1)}
	}
	c, api := newCertificate(t.TempDir(), logr.Discard()), &secretAPI{first: first, next: make(chan *corev1.Secret)}
	mgr, err := newManager(&rest.Config{Host: "http://api", Transport: api}, options{}, c, logr.Discard())
	must.Succeed(t, err)
	api.Manager = mgr
	err = c.add(api)
	if err != nil && !strings.Contains(err.Error(), "cert-rotator already exists") { // it does with -count
		t.Fatal(err)
	}
	if len(api.added) < 2 {
		t.Error("nothing creates the certificate")
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- api.added[0].Start(ctx) }()
	presents := func(ca *x509.CertPool) {
		t.Helper()
		end := time.Now().Add(time.Minute)
		for dial(t, c, &tls.Config{RootCAs: ca, ServerName: "manager"}) != nil {
			if time.Sleep(10 * time.Millisecond); time.Now().After(end) {
				t.Fatal("the server does not present the certificate in the Secret")
			}
		}
	}
	presents(firstCA)
	api.next <- second
	presents(secondCA)
	stop()
	<-done
}

// TestWebhookClients calls a webhook with --webhook-client-ca with a certificate of that CA, of
// another one, and without one.
func TestWebhookClients(t *testing.T) {
	var own, other tls.Certificate
	file := filepath.Join(t.TempDir(), "ca.crt")
	for _, client := range []*tls.Certificate{&other, &own} {
		secret, _ := newSecret(t, "api")
		pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
		must.Succeed(t, errors.Join(err, os.WriteFile(file, secret.Data["ca.crt"], 0o600)))
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
		err := server.Handshake()
		check.Equal(t, err == nil, name == "own", "certificate", name, err)
		here.Close()
		there.Close()
	}
	must.Succeed(t, os.WriteFile(file, []byte("none"), 0o600))
	if requireClients(config, file) == nil {
		t.Error("a file without a certificate is accepted")
	}
}
