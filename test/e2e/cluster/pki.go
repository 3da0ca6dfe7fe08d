package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// writeKeys creates the API server's certificate and key, which also signs the tokens of service
// accounts, and the tokens and kubeconfigs of all others.
func (c *Cluster) writeKeys(context.Context) error {
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
	for file, data := range map[string][]byte{"apiserver.crt": authority, "apiserver.key": key,
		"tokens.csv": []byte(tokens)} {
		if err := writeFileMode(c.path("run/pki/"+file), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}
