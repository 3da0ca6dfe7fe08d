package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
)

// certificate returns a CA, as PEM, and a client certificate that it has signed.
func certificate(t *testing.T) (ca []byte, client tls.Certificate) {
	t.Helper()
	r := &rotator.CertRotator{CAName: "ca", DNSName: "api", ExtKeyUsages: &[]x509.ExtKeyUsage{
		x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	begin, end := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	pair, err := r.CreateCACert(begin, end)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := r.CreateCertPEM(pair, begin, end)
	if err != nil {
		t.Fatal(err)
	}
	if client, err = tls.X509KeyPair(cert, key); err != nil {
		t.Fatal(err)
	}
	return pair.CertPEM, client
}

// TestWebhookClients calls a webhook with --webhook-client-ca with a certificate of that CA, of
// another one, and without one.
func TestWebhookClients(t *testing.T) {
	ca, own := certificate(t)
	_, other := certificate(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	clients, err := clientsOf(file)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{own}}
	clients(config)
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
	if err := os.WriteFile(file, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := clientsOf(file); err == nil {
		t.Error("a file without a certificate is accepted")
	}
}
