package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// KubeRouter is kube-router: the name of the service of nodes that have it, and of the option CNI.
const KubeRouter = "kube-router"

// StartKubeRouter starts kube-router as k0s does: its list is written only where it is missing, and
// kube-router adds the node's subnet to it.
func (n *Node) StartKubeRouter(ctx context.Context) error {
	network := n.DefaultNetwork()
	path := network.Path(0)
	if !exists(n.Root() + path) {
		network.Stock = true
		list, err := network.Conflist()
		if err != nil {
			return err
		}
		if err := n.write(path, list); err != nil {
			return err
		}
	}
	return n.Machine().Start(ctx, machine.Service{Name: KubeRouter, Log: n.cluster.Log(n.Name, KubeRouter),
		// Until the node and its subnet are known, it exits.
		Restart: true,
		Env:     []string{"NODE_NAME=" + n.Name, "KUBE_ROUTER_CNI_CONF_FILE=" + path, "PATH=" + servicePath},
		Argv: []string{n.cluster.path("bin/kube-router/kube-router"), "--kubeconfig=" + n.cluster.Kubeconfig(),
			"--hostname-override=" + n.Name, "--run-router=true", "--run-firewall=true", "--run-service-proxy=false",
			"--bgp-graceful-restart=true", "--auto-mtu=true", "--hairpin-mode=false", "--health-port=20244"}})
}

// setPodSubnets sets the pods' subnets in the Node objects, where kube-router reads them. Elsewhere
// the controller manager does so.
func (c *Cluster) setPodSubnets(ctx context.Context) error {
	for i, name := range c.NodeNames() {
		patch := fmt.Sprintf(`{"spec": {"podCIDR": "%v", "podCIDRs": ["%[1]v"]}}`, c.PodSubnet(i))
		err := machine.Poll(ctx, 5*time.Minute, func() error { // until the kubelet has registered the node
			return run(ctx, c.kubectl("patch", "node", name, "--patch="+patch)...)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
