package netns_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// waitFor fails the test if condition does not become true within a minute. While nothing is sent
// to an address, only an announcement updates its neighbour entry.
func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

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
	if err != nil {
		t.Fatalf("the interface of %s: %v", s.Pod.Name, err)
	}
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
	if err != nil {
		t.Fatalf("neighbours: %v", err)
	}
	return macs
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

// capture contains the frames that a sandbox's interface receives.
type capture chan []byte

func startCapture(t *testing.T, s *lab.Sandbox) capture {
	t.Helper()
	var fd int
	err := inside(s)(func() (err error) {
		const all = 0x0300 // ETH_P_ALL, in network order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
		return err
	})
	if err != nil {
		t.Fatalf("packet socket: %v", err)
	}
	f := os.NewFile(uintptr(fd), "packet socket") // so that Close ends Read
	frames := make(capture, 10_000)
	t.Cleanup(func() { f.Close() })
	go func() {
		defer close(frames)
		for {
			frame := make([]byte, 2048)
			n, err := f.Read(frame)
			if err != nil {
				return
			}
			select {
			case frames <- frame[:n]:
			default:
			}
		}
	}()
	return frames
}

// announcement waits for a frame that announces the address, and returns its kind and MAC address.
// It returns empty strings after a minute.
func (c capture) announcement(address netip.Addr) (form, mac string) {
	for {
		select {
		case frame, open := <-c:
			if !open {
				return "", ""
			}
			if form, mac, ok := parseAnnouncement(frame, address); ok {
				return form, mac
			}
		case <-time.After(time.Minute):
			return "", ""
		}
	}
}

func parseAnnouncement(frame []byte, address netip.Addr) (form, mac string, ok bool) {
	const header, ip6Header, icmp6 = 14, 40, 58
	if len(frame) < header {
		return "", "", false
	}
	var p arp.Packet
	switch kind := uint16(frame[12])<<8 | uint16(frame[13]); {
	case kind == unix.ETH_P_ARP && p.UnmarshalBinary(frame[header:]) == nil:
		if p.SenderIP != address || p.TargetIP != address {
			return "", "", false
		}
		form = map[arp.Operation]string{arp.OperationRequest: "request", arp.OperationReply: "reply"}[p.Operation]
		return form, p.SenderHardwareAddr.String(), true
	case kind == unix.ETH_P_IPV6 && len(frame) > header+ip6Header &&
		frame[header+6] == icmp6 && frame[header+7] == ndp.HopLimit:
		m, err := ndp.ParseMessage(frame[header+ip6Header:])
		na, isNA := m.(*ndp.NeighborAdvertisement)
		if err != nil || !isNA || na.TargetAddress != address || na.Solicited || !na.Override {
			return "", "", false
		}
		for _, o := range na.Options {
			if l, isLink := o.(*ndp.LinkLayerAddress); isLink && l.Direction == ndp.Target {
				return "advertisement", l.Addr.String(), true
			}
		}
	}
	return "", "", false
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
	if n := queued(t, node); len(n) != 0 {
		t.Errorf("new addresses are queued for announcement: %q", n)
	}
	addresses := strings.Fields(original)
	places := map[string]func(func() error) error{"the sibling": inside(sibling), "the node": node.Do}
	for returns := range 3 {
		sandbox.Echo()
		old := macOf(t, sandbox)
		for _, a := range addresses {
			ask(t, sibling, node, a)
			for who, place := range places {
				if got := neighbourMACs(t, place, a); !slices.Equal(got, []string{old}) {
					t.Fatalf("before the return %s has %v for %s, want %s", who, got, a, old)
				}
			}
		}
		stop(t, sandbox, net)

		captures := map[string]capture{}
		for _, a := range addresses {
			captures[a] = startCapture(t, sibling)
		}
		sandbox = node.Sandbox(recreated(db))
		if err := inside(sandbox)(func() (err error) {
			for range returns { // each uses up two indexes
				link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "was"}, PeerName: "there"}
				err = errors.Join(err, netlink.LinkAdd(link), netlink.LinkDel(link))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
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
			if got := queued(t, node); !slices.Equal(got, []string{sandbox.ID + "@eth0"}) {
				t.Errorf("the queue has %q, want the entry of %s", got, sandbox.ID)
			}
			for _, name := range []string{"nonsense", sibling.ID + "@eth1", "cafe@eth0"} {
				if err := os.WriteFile(filepath.Join(node.RunDir(), "announce", name), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			node.Agent()
		}
		for _, a := range addresses {
			missing := map[string]bool{"request": true, "reply": true}
			if strings.Contains(a, ":") {
				missing = map[string]bool{"advertisement": true}
			}
			for len(missing) > 0 {
				form, mac := captures[a].announcement(netip.MustParseAddr(a))
				if mac != now {
					t.Fatalf("%s was announced by %q %q, want %s", a, form, mac, now)
				}
				delete(missing, form)
			}
			for who, place := range places {
				waitFor(t, who+" has "+now+" for "+a, func() bool {
					got := neighbourMACs(t, place, a)
					removed := who == "the node" && len(got) == 0 // by the plugin, and not resolved again yet
					return removed || slices.Equal(got, []string{now})
				})
			}
		}
		waitFor(t, "the queue is empty", func() bool { return len(queued(t, node)) == 0 })
		for _, l := range of(node.Leases(), db) {
			if l.MAC != now {
				t.Errorf("the lease of %s has the MAC address %q, want %s", l.Address, l.MAC, now)
			}
		}
	}
}

func ask(t *testing.T, sibling *lab.Sandbox, node *lab.Node, address string) {
	t.Helper()
	if err := sibling.Ask(address); err != nil {
		t.Fatalf("connect from another pod: %v", err)
	}
	if err := node.Ask(net.JoinHostPort(address, lab.EchoPort)); err != nil {
		t.Fatalf("connect from the node: %v", err)
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
				if err := sibling.Ask(a); err != nil {
					t.Fatalf("connect from another pod: %v", err)
				}
			}
			for range 3 {
				stop(t, sandbox, net)
				var address string
				sandbox, address = start(t, node, net, recreated(db))
				if address != original {
					t.Fatalf("db-0 came back with %s, want %s", address, original)
				}
				if got := macOf(t, sandbox); got != mac {
					t.Errorf("db-0 came back with the MAC address %s, want %s", got, mac)
				}
				if got := sandbox.MACs[sandbox.IfName]; got != mac {
					t.Errorf("the result has the MAC address %s, want %s", got, mac)
				}
				if tc.version != "0.3.1" { // has no CHECK
					if err := sandbox.Check(net); err != nil {
						t.Errorf("CHECK: %v", err)
					}
				}
				sandbox.Echo()
				for _, a := range strings.Fields(original) {
					if got := neighbourMACs(t, inside(sibling), a); tc.plugin == "bridge" &&
						!slices.Equal(got, []string{mac}) {
						t.Errorf("another pod has %v for %s, want %s", got, a, mac)
					}
					if err := sibling.Ask(a); err != nil {
						t.Errorf("connect from another pod: %v", err)
					}
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
				if err := net.Status(); err != nil {
					t.Errorf("STATUS: %v", err)
				}
				err := net.GC(types.GCAttachment{ContainerID: sandbox.ID, IfName: "eth0"},
					types.GCAttachment{ContainerID: sibling.ID, IfName: "eth0"})
				if err != nil {
					t.Errorf("GC: %v", err)
				}
				if got := macOf(t, sandbox); got != mac {
					t.Errorf("MAC address after STATUS and GC: %s, want %s", got, mac)
				}
			}
		})
	}
}

// TestChainedNeverTwice verifies that a pod whose old sandbox still runs gets another address and
// another MAC address.
func TestChainedNeverTwice(t *testing.T) {
	node := newNode(t)
	conf := node.Bridge(lab.With(node.IPAM("10.1.0.0/24"), lab.Conf{"busyTimeout": "1ms"}))
	net := node.Network("net", "1.0.0", conf, lab.Conf{"type": "leasehold"})
	db := lab.NewPod("default", "db-0", "10")
	old, original := start(t, node, net, db)
	returned := recreated(db)
	if _, err := node.Sandbox(returned).Add(net); err == nil {
		t.Fatal("the first ADD succeeded although the old sandbox runs")
	}
	node.Clock += time.Second
	second, address := start(t, node, net, returned)
	if address == original || macOf(t, second) == macOf(t, old) {
		t.Errorf("the old sandbox has %s and %s, the new one %s and %s",
			original, macOf(t, old), address, macOf(t, second))
	}
}

// TestChainedKeepsARequestedMAC verifies that a requested MAC address is not changed, and is
// recorded in the lease.
func TestChainedKeepsARequestedMAC(t *testing.T) {
	node := newNode(t)
	net := node.Network("net", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/24")), lab.Conf{"type": "leasehold"})
	db := lab.NewPod("default", "db-0", "10")
	first, _ := start(t, node, net, db)
	stop(t, first, net)
	const requested = "02:11:22:33:44:55"
	second := node.Sandbox(recreated(db))
	second.Args = append(second.Args, [2]string{"MAC", requested})
	add(t, second, net)
	if got := macOf(t, second); got != requested {
		t.Errorf("MAC address %s, want %s", got, requested)
	}
	stop(t, second, net)
	third, _ := start(t, node, net, recreated(db))
	if got := macOf(t, third); got != requested {
		t.Errorf("MAC address %s after the return, want %s", got, requested)
	}
}
