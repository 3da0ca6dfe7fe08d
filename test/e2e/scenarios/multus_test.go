package scenarios

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// onMultus recreates pods that Multus attaches to two networks. Multus passes no annotations on, so
// that the windows come from the agent.
func onMultus(t *Test) {
	n := t.Node(3)
	dir, err := t.Cluster.BuildMultus(t.Ctx)
	t.Must(err)
	t.Must(n.InstallPlugin(filepath.Join(dir, "multus")))
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
	text, err := json.Marshal(map[string]any{"cniVersion": "0.3.1", "name": "multus", "type": "multus",
		"kubeconfig":     t.Cluster.Kubeconfig(),
		"clusterNetwork": fmt.Sprintf("/etc/cni/net.d/10-%s.conflist", n.DefaultNetwork().Name)})
	t.Must(err)
	t.Must(n.SetConfiguration(t.Ctx, "multus", string(text)))

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

// interfaces returns the interfaces in the pods' network namespaces, with their addresses.
func (t *Test) interfaces(set *Set) map[string]string {
	found := map[string]string{}
	for name, pod := range set.Ready() {
		found[name] = t.interfacesOf(set.Node, pod)
	}
	return found
}

// interfacesOf returns the interfaces of a pod, sorted by name, with their addresses.
func (t *Test) interfacesOf(n *cluster.Node, pod corev1.Pod) string {
	byName, err := inspect.Addresses(t.Sandbox(n, pod).NetNS)
	t.Must(err)
	return fmt.Sprint(byName)
}
