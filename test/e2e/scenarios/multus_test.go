package scenarios

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

func onMultus(t *Test)      { multus(t, "multus") }
func onThickMultus(t *Test) { multus(t, "multus-shim") }

// multus recreates pods that Multus attaches to two networks. Multus passes no annotations on, so
// that the windows come from the agent. plugin is the one that the runtime calls.
func multus(t *Test, plugin string) {
	n := t.Node(3)
	dir, err := t.Cluster.BuildMultus(t.Ctx)
	t.Must(err)
	t.Must(n.InstallPlugin(filepath.Join(dir, plugin)))
	t.createCRD("k8s.cni.cncf.io", "network-attachment-definitions", "NetworkAttachmentDefinition", "v1")
	lan := cluster.Network{Name: "lan", Type: "bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("10.252.0.0/24")}}
	config, err := lan.Conflist()
	t.Must(err)
	definition, err := json.Marshal(map[string]any{"apiVersion": "k8s.cni.cncf.io/v1",
		"kind": "NetworkAttachmentDefinition", "metadata": map[string]any{"name": "lan"},
		"spec": map[string]any{"config": string(config)}})
	t.Must(err)
	t.Apply(string(definition))

	t.Networks(n, n.DefaultNetwork())
	t.Cleanup(func() { t.Must(n.RemoveBridge(t.Ctx, lan)) })
	if plugin == "multus" {
		text, err := json.Marshal(map[string]any{"cniVersion": "0.3.1", "name": "multus", "type": plugin,
			"kubeconfig":     t.Cluster.Kubeconfig(),
			"clusterNetwork": fmt.Sprintf("/etc/cni/net.d/10-%s.conflist", n.DefaultNetwork().Name)})
		t.Must(err)
		t.Must(n.SetConfiguration(string(text)))
	} else {
		t.startMultusDaemon(n, dir)
	}

	t.Step("two echoservers start on %s, in two networks", n.Name)
	set := t.Echoserver("echoserver", n, 2, func(template *corev1.PodTemplateSpec) {
		template.Annotations["k8s.v1.cni.cncf.io/networks"] = "lan"
	})
	before := t.interfaces(set)
	for pod, lines := range before {
		if !strings.Contains(lines, "eth0") || !strings.Contains(lines, "net1") {
			t.Fatalf("%s has %s", pod, lines)
		}
	}
	t.Eventually("a window for each of the four addresses", func() error {
		leases := t.Leases(n)
		windows := 0
		for _, l := range leases {
			if l.Namespace == t.NS && l.Window != "" {
				windows++
			}
		}
		if windows != 4 {
			return fmt.Errorf("%d leases have a window: %+v", windows, leases)
		}
		return nil
	})
	t.Step("echoserver-0 has %s; both pods are deleted, and another pod takes an address", before["echoserver-0"])
	set.Scale(0)
	t.otherPods("others", n, 1, nil)
	set.Scale(2)
	after := t.interfaces(set)
	for pod := range before {
		if before[pod] != after[pod] {
			t.Fatalf("%s had %s and has %s", pod, before[pod], after[pod])
		}
	}
}

// startMultusDaemon runs the daemon on a node until the scenario ends, with an account like that of
// a pod. The daemon writes the CNI configuration for its shim.
func (t *Test) startMultusDaemon(n *cluster.Node, dir string) {
	t.ApplyFor(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: multus}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: default, namespace: ` + t.NS + `}]
`)
	token, err := t.Client.CoreV1().ServiceAccounts(t.NS).CreateToken(t.Ctx, "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	t.Must(err)
	ca, err := t.Client.CoreV1().ConfigMaps(t.NS).Get(t.Ctx, "kube-root-ca.crt", metav1.GetOptions{})
	t.Must(err)
	api, err := t.Client.CoreV1().Services("default").Get(t.Ctx, "kubernetes", metav1.GetOptions{})
	t.Must(err)
	account := n.Root() + "/run/secrets/kubernetes.io/serviceaccount"
	t.Must(os.MkdirAll(account, 0o755))
	t.Must(os.WriteFile(filepath.Join(account, "token"), []byte(token.Status.Token), 0o600))
	t.Must(os.WriteFile(filepath.Join(account, "ca.crt"), []byte(ca.Data["ca.crt"]), 0o644))
	const config = "/run/multus.json"
	t.Must(os.WriteFile(n.Root()+config, []byte(`{"cniVersion": "0.3.1", "logToStderr": true, "logLevel": "verbose",
		"multusConfigFile": "auto", "multusAutoconfigDir": "/etc/cni/net.d", "cniConfigDir": "/etc/cni/net.d"}`), 0o644))
	t.Must(n.Machine().Start(t.Ctx, machine.Service{Name: "multus-daemon", Log: t.Cluster.Log(n.Name, "multus-daemon"),
		Argv: []string{filepath.Join(dir, "multus-daemon"), "-config", config},
		Env: []string{"KUBERNETES_SERVICE_HOST=" + api.Spec.ClusterIP, "KUBERNETES_SERVICE_PORT=443",
			"MULTUS_NODE_NAME=" + n.Name, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}))
	t.Cleanup(func() { // after the DELs, which need it
		t.Clear()
		t.Must(n.Stop(t.Ctx, "multus-daemon"))
	})
	t.Eventually("a CNI configuration of Multus", func() error {
		_, err := os.Stat(n.Root() + "/etc/cni/net.d/00-multus.conf")
		return err
	})
	time.Sleep(500 * time.Millisecond) // as in SetNetworks
}

// interfaces returns the interfaces in the pods' network namespaces.
func (t *Test) interfaces(set *Set) map[string]string {
	found := map[string]string{}
	for name, pod := range set.Ready() {
		found[name] = t.interfacesOf(set.Node, pod)
	}
	return found
}

func (t *Test) interfacesOf(n *cluster.Node, pod corev1.Pod) string {
	byName, err := inspect.Addresses(t.Sandbox(n, pod).NetNS)
	t.Must(err)
	var lines []string
	for link, addrs := range byName {
		lines = append(lines, fmt.Sprint(link, " ", addrs))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}
