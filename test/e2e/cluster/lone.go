package cluster

import "context"

// NewLone returns a cluster that is one node without Kubernetes, for other programs that call CNI
// plugins. Its directory is that of NewBare's kind.
func NewLone(repo, dir string) (*Cluster, error) {
	return newInside(repo, dir, "lone", Options{Nodes: 1, Containerd: "2.4", CNI: "bridge", Plain: true})
}

// UpLone starts the node, after removing a former one, with upstream's plugins, and containerd with
// the images that only tests need.
func (c *Cluster) UpLone(ctx context.Context) (err error) {
	if err := c.begin(ctx, "debian", "plugins", "containerd"); err != nil {
		return err
	}
	if _, err := c.runImages(ctx, testImages...); err != nil {
		return err
	}
	defer c.stopIfFailed(ctx, &err)
	n := c.Node("node1")
	if err := inOrder(ctx, c.startNetwork, n.boot, n.prepare); err != nil {
		return err
	}
	network := n.DefaultNetwork()
	network.IPAM = object{"type": "host-local"}
	return n.SetNetworks(ctx, network)
}

// RebootLone has the node lose power, and boots it.
func (c *Cluster) RebootLone(ctx context.Context) error {
	n := c.Node("node1")
	return inOrder(ctx, n.PowerOff, n.boot, n.startRuntime)
}
