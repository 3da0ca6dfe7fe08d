package kube

import (
	"crypto/tls"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
)

// renewAfter is the age at which a self-signed certificate is replaced. It is valid for a year.
const renewAfter = 180 * 24 * time.Hour

// SelfSigned returns the TLS configuration of a server with a self-signed certificate for a host.
// The certificate is made when the first client connects, and is replaced before it expires. It
// encrypts, but proves nothing to a client: who scrapes must not verify it.
func SelfSigned(host string) *tls.Config {
	var mu sync.Mutex
	var current *tls.Certificate
	var made time.Time
	get := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		if current != nil && time.Since(made) < renewAfter {
			return current, nil
		}
		pem, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("making a certificate for metrics: %w", err)
		}
		pair, err := tls.X509KeyPair(pem, key)
		if err != nil {
			return nil, err
		}
		current, made = &pair, time.Now()
		return current, nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: get}
}
