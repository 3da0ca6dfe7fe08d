package lab_test

import (
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// TestUpstream tests the lab itself, with upstream host-local.
func TestUpstream(t *testing.T) {
	for name, conf := range map[string]func(*lab.Node, lab.Conf) lab.Conf{
		"bridge":  (*lab.Node).Bridge,
		"ptp":     (*lab.Node).PTP,
		"macvlan": (*lab.Node).Macvlan,
		"flannel": func(n *lab.Node, ipam lab.Conf) lab.Conf { return n.Flannel(ipam, "10.9.0.0/24", "fd09::/64") },
	} {
		t.Run(name, func(t *testing.T) {
			node := lab.NewNode(t)
			ipam := lab.With(node.IPAM("10.9.0.0/24", "fd09::/64"), lab.Conf{"type": "host-local"})
			net := node.Network(name, "0.4.0", conf(node, ipam), lab.Conf{"type": "portmap",
				"capabilities": lab.Conf{"portMappings": true}})
			a, b := node.Sandbox(lab.NewPod("ns", "a", "")), node.Sandbox(lab.NewPod("ns", "b", ""))
			if name == "bridge" {
				a.Capabilities["portMappings"] = []map[string]any{{"hostPort": 8080, "containerPort": 7,
					"protocol": "tcp"}}
			}
			addrs, err := a.Add(net)
			if err != nil || len(addrs) != 2 {
				t.Fatalf("ADD: %v, %v", addrs, err)
			}
			if _, err := b.Add(net); err != nil {
				t.Fatalf("ADD: %v", err)
			}
			a.Echo()
			for _, addr := range addrs {
				if err := b.Ask(addr); err != nil {
					t.Errorf("connection from a sibling: %v", err)
				}
			}
			if err := a.Stop(net); err != nil {
				t.Errorf("DEL: %v", err)
			}
			if err := b.Stop(net); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
}
