package netns_test

import (
	"errors"
	"net"

	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/vishvananda/netlink"

	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// inside returns a function that runs another one in the network namespace of a sandbox, like
// Node.Do in that of a node.
func inside(s *lab.Sandbox) func(func() error) error {
	return func(f func() error) error { return ns.WithNetNSPath(s.NetNS, func(ns.NetNS) error { return f() }) }
}

// macOf returns the MAC address of a sandbox's interface.
func macOf(t *testing.T, s *lab.Sandbox) (mac string) {
	t.Helper()
	err := inside(s)(func() error {
		link, err := netlink.LinkByName(s.IfName)
		if err == nil {
			mac = link.Attrs().HardwareAddr.String()
		}
		return err
	})
	must.Succeed(t, err, "the interface of", s.Pod.Name)
	return mac
}

// neighbourMACs returns the MAC addresses of the valid neighbour entries for an address. do runs a
// function in the network namespace in question.
func neighbourMACs(t *testing.T, do func(func() error) error, address string) (macs []string) {
	t.Helper()
	err := do(func() error {
		family := netlink.FAMILY_V4
		if strings.Contains(address, ":") {
			family = netlink.FAMILY_V6
		}
		list, err := netlink.NeighList(0, family)
		for _, n := range list {
			if n.IP.String() == address && n.State&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED|netlink.NUD_NONE) == 0 {
				macs = append(macs, n.HardwareAddr.String())
			}
		}
		return err
	})
	must.Succeed(t, err, "neighbours")
	return macs
}

// talkedTo makes the neighbour entry of an address and its former MAC address that is left where
// somebody has talked to it. The kernel keeps the entry as it is until something is sent to the
// address: nothing is, so only an announcement changes it. An entry that real traffic has made
// would be probed, and fail, some seconds after the pod has gone.
func talkedTo(t *testing.T, do func(func() error) error, address, mac string) {
	t.Helper()
	err := do(func() error {
		hardware, err := net.ParseMAC(mac)
		if err != nil {
			return err
		}
		routes, err := netlink.RouteGet(net.ParseIP(address))
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: routes[0].LinkIndex, IP: net.ParseIP(address),
			HardwareAddr: hardware, State: netlink.NUD_STALE})
	})
	must.Succeed(t, err, "the neighbour entry of", address)
}

// queued returns the entries of a node's announce queue.
func queued(t *testing.T, node *lab.Node) []string {
	t.Helper()
	files, err := os.ReadDir(filepath.Join(node.RunDir(), "announce"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// TestReturnIsAnnounced verifies that the new MAC address of a returned pod is announced, so that a
// pod of the same bridge and the node update their neighbour entries: by an agent that starts after
// the return and finds invalid entries in the queue, and by one that runs, in namespaces in which
// eth0 has different indexes.
func TestReturnIsAnnounced(t *testing.T) {
	node := newNode(t)
	net := node.Network("net", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/24", "fd01::/64")))
	db := lab.NewPod("default", "db-0", "10")
	sandbox, original := start(t, node, net, db)
	sibling, _ := start(t, node, net, lab.NewPod("default", "web-0", ""))
	check.Empty(t, queued(t, node), "new addresses that are queued for announcement")
	addresses := strings.Fields(original)
	places := map[string]func(func() error) error{"the sibling": inside(sibling), "the node": node.Do}
	for returns := range 3 {
		old := macOf(t, sandbox)
		for _, a := range addresses {
			for who, place := range places {
				talkedTo(t, place, a, old)
				if got := neighbourMACs(t, place, a); !slices.Equal(got, []string{old}) {
					t.Fatalf("before the return %s has %v for %s, want %s", who, got, a, old)
				}
			}
		}
		stop(t, sandbox, net)

		sandbox = node.Sandbox(db.Recreated())
		must.Succeed(t, inside(sandbox)(func() (err error) {
			for range returns { // each uses up two indexes
				link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "was"}, PeerName: "there"}
				err = errors.Join(err, netlink.LinkAdd(link), netlink.LinkDel(link))
			}
			return err
		}))
		if again := add(t, sandbox, net); again != original {
			t.Fatalf("db-0 came back with %s, want %s", again, original)
		}
		now := macOf(t, sandbox)
		if now == old {
			t.Fatal("the MAC address did not change")
		}
		if returns == 0 {
			for _, a := range addresses {
				if got := neighbourMACs(t, node.Do, a); slices.Contains(got, old) {
					t.Errorf("the plugin has left %s for %s on the node", old, a)
				}
			}
			check.Slices(t, queued(t, node), []string{sandbox.ID + "@eth0"}, "the queue")
			for _, name := range []string{"nonsense", sibling.ID + "@eth1", "cafe@eth0"} {
				must.Succeed(t, os.WriteFile(filepath.Join(node.RunDir(), "announce", name), nil, 0o600))
			}
			node.Agent()
		}
		for _, a := range addresses {
			for who, place := range places {
				background.Until(t, who+" has "+now+" for "+a, func() bool {
					got := neighbourMACs(t, place, a)
					removed := who == "the node" && len(got) == 0 // by the plugin, and not resolved again yet
					return removed || slices.Equal(got, []string{now})
				})
			}
		}
		background.Until(t, "the queue is empty", func() bool { return len(queued(t, node)) == 0 })
	}
}

// TestChainedKeepsTheMAC verifies that leasehold as a chained plugin keeps the MAC address of a
// returned pod with every main plugin.
func TestChainedKeepsTheMAC(t *testing.T) {
	for _, tc := range mainPlugins {
		t.Run(tc.plugin, func(t *testing.T) {
			t.Parallel()
			node := newNode(t)
			net := node.Network("net", tc.version, tc.conf(node), lab.Conf{"type": "leasehold"})
			db := lab.NewPod("default", "db-0", "10")
			sandbox, original := start(t, node, net, db)
			sibling, _ := start(t, node, net, lab.NewPod("default", "web-0", ""))
			mac := macOf(t, sandbox)
			sandbox.Echo()
			for _, a := range strings.Fields(original) {
				must.Succeed(t, sibling.Ask(a), "connect from another pod")
			}
			for range 3 {
				stop(t, sandbox, net)
				var address string
				sandbox, address = start(t, node, net, db.Recreated())
				if address != original {
					t.Fatalf("db-0 came back with %s, want %s", address, original)
				}
				check.Equal(t, macOf(t, sandbox), mac, "db-0 came back with the MAC address")
				check.Equal(t, sandbox.MACs[sandbox.IfName], mac, "the result has the MAC address")
				if tc.version != "0.3.1" { // has no CHECK
					must.Succeed(t, sandbox.Check(net), "CHECK")
				}
				sandbox.Echo()
				for _, a := range strings.Fields(original) {
					if got := neighbourMACs(t, inside(sibling), a); tc.plugin == "bridge" &&
						!slices.Equal(got, []string{mac}) {
						t.Errorf("another pod has %v for %s, want %s", got, a, mac)
					}
					must.Succeed(t, sibling.Ask(a), "connect from another pod")
				}
			}
			if macOf(t, sibling) == mac {
				t.Errorf("two pods have the MAC address %s", mac)
			}
			for _, l := range of(node.Leases(), db) {
				if l.MAC != mac || l.Container != sandbox.ID || l.State != "Bound" {
					t.Errorf("the lease is %+v, want it Bound with %s", l, mac)
				}
			}
			if tc.version == "1.1.0" {
				must.Succeed(t, net.Status(), "STATUS")
				err := net.GC(types.GCAttachment{ContainerID: sandbox.ID, IfName: "eth0"},
					types.GCAttachment{ContainerID: sibling.ID, IfName: "eth0"})
				must.Succeed(t, err, "GC")
				check.Equal(t, macOf(t, sandbox), mac, "MAC address after STATUS and GC")
			}
		})
	}
}
