package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A ca signs the cluster's certificates. Its key is not stored.
type ca struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

func newCA() (*ca, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := certTemplate("leasehold-test", nil)
	cert.IsCA, cert.BasicConstraintsValid = true, true
	cert.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err = x509.ParseCertificate(der)
	return &ca{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, err
}

func certTemplate(name string, groups []string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
}

// issue returns a new certificate and its key, PEM-encoded.
func (c *ca) issue(name string, groups []string, ips []net.IP, hosts ...string) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	t := certTemplate(name, groups)
	t.IPAddresses, t.DNSNames = ips, hosts
	der, err := x509.CreateCertificate(rand.Reader, t, c.cert, k.Public(), c.key)
	if err != nil {
		return nil, nil, err
	}
	key, err = keyPEM(k)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, err
}

func keyPEM(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(k)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}

// writeKeys creates the keys, certificates and kubeconfigs of the cluster.
func (c *Cluster) writeKeys() error {
	authority, err := newCA()
	if err != nil {
		return err
	}
	if err := writeSecret(c.path("run/pki/ca.crt"), authority.pem); err != nil {
		return err
	}
	service, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	key, err := keyPEM(service)
	if err != nil {
		return err
	}
	if err := writeSecret(c.path("run/pki/service-accounts.key"), key); err != nil {
		return err
	}
	cert, key, err := authority.issue("kube-apiserver", nil,
		[]net.IP{c.controlAddr().Addr().AsSlice(), net.ParseIP(apiService), net.ParseIP("127.0.0.1")},
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"localhost")
	if err != nil {
		return err
	}
	if err := writeSecret(c.path("run/pki/apiserver.crt"), cert); err != nil {
		return err
	}
	if err := writeSecret(c.path("run/pki/apiserver.key"), key); err != nil {
		return err
	}
	clients := map[string][2]string{ // file -> name and group
		"admin":              {"admin", "system:masters"},
		"apiserver":          {"kube-apiserver", "system:masters"},
		"controller-manager": {"system:kube-controller-manager", ""},
		"scheduler":          {"system:kube-scheduler", ""},
	}
	if c.Bare {
		if err := c.writeWebhookClient(); err != nil {
			return err
		}
	}
	for _, node := range c.NodeNames() {
		clients[node] = [2]string{"system:node:" + node, "system:nodes"}
	}
	for file, who := range clients {
		if err := c.writeClient(authority, file, who[0], who[1]); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// writeClient writes FILE.kubeconfig, and the certificate and key as separate files.
func (c *Cluster) writeClient(authority *ca, file, name, group string) error {
	var groups []string
	if group != "" {
		groups = []string{group}
	}
	cert, key, err := authority.issue(name, groups, nil)
	if err != nil {
		return err
	}
	if err := writeSecret(c.path("run/pki/"+file+"-client.crt"), cert); err != nil {
		return err
	}
	if err := writeSecret(c.path("run/pki/"+file+"-client.key"), key); err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["leasehold"] = &clientcmdapi.Cluster{
		Server:                   c.apiURL(),
		CertificateAuthorityData: authority.pem,
	}
	config.AuthInfos[file] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["leasehold"] = &clientcmdapi.Context{Cluster: "leasehold", AuthInfo: file}
	config.CurrentContext = "leasehold"
	return clientcmd.WriteToFile(*config, c.path("run/"+file+".kubeconfig"))
}

// WebhookCA returns the file with the CA of the API server's client certificate for webhooks. No
// other certificate is of that CA.
func (c *Cluster) WebhookCA() string { return c.path("run/pki/webhook-ca.crt") }

// writeWebhookClient writes the client certificate for webhooks and the files that make the API
// server use it.
func (c *Cluster) writeWebhookClient() error {
	authority, err := newCA()
	if err != nil {
		return err
	}
	cert, key, err := authority.issue("kube-apiserver", nil, nil)
	if err != nil {
		return err
	}
	users := clientcmdapi.NewConfig()
	users.AuthInfos["*"] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	kubeconfig := c.path("run/webhooks.kubeconfig")
	if err := clientcmd.WriteToFile(*users, kubeconfig); err != nil {
		return err
	}
	if err := writeSecret(c.WebhookCA(), authority.pem); err != nil {
		return err
	}
	return writeSecret(c.path("run/admission.yaml"), []byte(fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: MutatingAdmissionWebhook
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: WebhookAdmissionConfiguration
    kubeConfigFile: %s
`, kubeconfig)))
}

func writeSecret(path string, data []byte) error { return writeFileMode(path, data, 0o600) }
