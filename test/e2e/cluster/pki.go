package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// writeKeys creates the API server's certificate and key, which also signs the tokens of service
// accounts, and the tokens and kubeconfigs of all others.
func (c *Cluster) writeKeys() error {
	authority, key, err := cert.GenerateSelfSignedCertKey(c.ControlAddr().String(),
		[]net.IP{net.ParseIP(apiService), net.ParseIP("127.0.0.1")},
		[]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			"localhost"})
	if err != nil {
		return err
	}
	clients := map[string]string{ // user and groups, by kubeconfig
		"admin":              `admin,admin,system:masters`,
		"controller-manager": `system:kube-controller-manager,controller-manager`,
		"scheduler":          `system:kube-scheduler,scheduler`,
	}
	for _, node := range c.NodeNames() {
		clients[node] = fmt.Sprintf(`system:node:%s,%[1]s,system:nodes`, node)
	}
	tokens := ""
	for file, user := range clients {
		token := rand.Text()
		tokens += token + "," + user + "\n"
		config := clientcmdapi.NewConfig()
		config.Clusters["leasehold"] = &clientcmdapi.Cluster{Server: c.apiURL(), CertificateAuthorityData: authority}
		config.AuthInfos[file] = &clientcmdapi.AuthInfo{Token: token}
		config.Contexts["leasehold"] = &clientcmdapi.Context{Cluster: "leasehold", AuthInfo: file}
		config.CurrentContext = "leasehold"
		if err := clientcmd.WriteToFile(*config, c.path("run/"+file+".kubeconfig")); err != nil {
			return err
		}
	}
	if c.Bare {
		if err := c.writeWebhookClient(); err != nil {
			return err
		}
	}
	return writeSecrets(map[string][]byte{c.path("run/pki/apiserver.crt"): authority,
		c.path("run/pki/apiserver.key"): key, c.path("run/pki/tokens.csv"): []byte(tokens)})
}

// WebhookCA returns the file with the API server's client certificate for webhooks, which has
// signed itself.
func (c *Cluster) WebhookCA() string { return c.path("run/pki/webhook-ca.crt") }

// writeWebhookClient writes the client certificate for webhooks and the files that make the API
// server use it.
func (c *Cluster) writeWebhookClient() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	authority, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "kube-apiserver"}, key)
	if err != nil {
		return err
	}
	certificate, err := cert.EncodeCertificates(authority)
	if err != nil {
		return err
	}
	keyData, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	users := clientcmdapi.NewConfig()
	users.AuthInfos["*"] = &clientcmdapi.AuthInfo{ClientCertificateData: certificate, ClientKeyData: keyData}
	kubeconfig := c.path("run/webhooks.kubeconfig")
	if err := clientcmd.WriteToFile(*users, kubeconfig); err != nil {
		return err
	}
	return writeSecrets(map[string][]byte{c.WebhookCA(): certificate,
		c.path("run/admission.yaml"): []byte(fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: MutatingAdmissionWebhook
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: WebhookAdmissionConfiguration
    kubeConfigFile: %s
`, kubeconfig))})
}

func writeSecrets(files map[string][]byte) error {
	for path, data := range files {
		if err := writeFileMode(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
