package netns_test

import (
	"encoding/json"
	"errors"
	"fmt"
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

// until fails the test unless so becomes true. It waits for less time than a neighbour takes to find out by itself (23 s at
// least: 15 of belief, 5 of delay, 3 of questions).
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not become true: %s", what)
		}
	}
}

// inside is the place of a sandbox; that of a node is its Do.
func inside(s *lab.Sandbox) func(func() error) error {
	return func(f func() error) error { return ns.WithNetNSPath(s.NetNS, func(ns.NetNS) error { return f() }) }
}

// macOf is the hardware address of a sandbox's interface.
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

// believed are the hardware addresses by which a place knows an address, as far as it can use them.
func believed(t *testing.T, place func(func() error) error, address string) (macs []string) {
	t.Helper()
	err := place(func() error {
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

// notes is what waits in a node's announce queue.
func notes(t *testing.T, node *lab.Node) []string {
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

// An ear hears what reaches a sandbox's interface.
type ear chan []byte

func listen(t *testing.T, s *lab.Sandbox) ear {
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
	heard := make(ear, 10_000)
	t.Cleanup(func() { f.Close() })
	go func() {
		defer close(heard)
		for {
			frame := make([]byte, 2048)
			n, err := f.Read(frame)
			if err != nil {
				return
			}
			select {
			case heard <- frame[:n]:
			default:
			}
		}
	}()
	return heard
}

// announcement waits for a frame that announces the address, and returns its form and the hardware address in it.
func (e ear) announcement(address netip.Addr) (form, mac string) {
	for {
		select {
		case frame, open := <-e:
			if !open {
				return "", ""
			}
			if form, mac, ok := parseAnnouncement(frame, address); ok {
				return form, mac
			}
		case <-time.After(20 * time.Second):
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
	case kind == unix.ETH_P_IPV6 && len(frame) > header+ip6Header && frame[header+6] == icmp6 && frame[header+7] == ndp.HopLimit:
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

// With the agent, whoever talked to a pod knows its new hardware address as soon as it is back: the sibling and the node.
func TestReturnIsAnnounced(t *testing.T) {
	node := newNode(t)
	node.Agent()
	net := node.Network("net", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/24", "fd01::/64")))
	db := lab.NewPod("default", "db-0", "10")
	first, home := start(t, node, net, db)
	first.Echo()
	sibling, _ := start(t, node, net, lab.NewPod("default", "web-0", ""))
	if n := notes(t, node); len(n) != 0 {
		t.Errorf("fresh addresses are to be announced: %q", n)
	}
	addresses := strings.Fields(home)
	old := macOf(t, first)
	places := map[string]func(func() error) error{"the sibling": inside(sibling), "the node": node.Do}
	for _, a := range addresses {
		ask(t, sibling, node, a)
		for who, place := range places {
			if got := believed(t, place, a); !slices.Equal(got, []string{old}) {
				t.Fatalf("%s knows %s as %v, want %s: the test has no start", who, a, got, old)
			}
		}
	}
	stop(t, first, net)

	heard := map[string]ear{}
	for _, a := range addresses {
		heard[a] = listen(t, sibling)
	}
	second, again := start(t, node, net, again(db))
	if again != home {
		t.Fatalf("db-0 came back with %s, want %s", again, home)
	}
	now := macOf(t, second)
	if now == old {
		t.Fatal("the hardware address is the same: the test has no start")
	}
	for _, a := range addresses {
		missing := map[string]bool{"request": true, "reply": true}
		if strings.Contains(a, ":") {
			missing = map[string]bool{"advertisement": true}
		}
		for len(missing) > 0 {
			form, mac := heard[a].announcement(netip.MustParseAddr(a))
			if mac != now {
				t.Fatalf("%s was announced by %q %q, want %s", a, form, mac, now)
			}
			delete(missing, form)
		}
		for who, place := range places {
			until(t, who+" knows "+a+" as "+now, func() bool {
				got := believed(t, place, a)
				forgotten := who == "the node" && len(got) == 0 // and not asked for
				return forgotten || slices.Equal(got, []string{now})
			})
		}
	}
	second.Echo()
	for _, a := range addresses {
		ask(t, sibling, node, a)
	}
	until(t, "the queue is empty", func() bool { return len(notes(t, node)) == 0 })
	for _, l := range of(node.Leases(), db) {
		if l.MAC != now {
			t.Errorf("the lease of %s has the hardware address %q, want %s", l.Address, l.MAC, now)
		}
	}
}

// Interfaces of one name have one index each in their namespaces: moved links keep theirs. The announcements of one agent
// do not mix them up.
func TestReturnsToOtherIndexes(t *testing.T) {
	node := newNode(t)
	node.Agent()
	net := node.Network("net", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/24", "fd01::/64")))
	sibling, _ := start(t, node, net, lab.NewPod("default", "web-0", ""))
	indexes := map[int]bool{}
	for i := range 3 {
		db := lab.NewPod("default", fmt.Sprint("db-", i), "10")
		first, home := start(t, node, net, db)
		stop(t, first, net)
		second := node.Sandbox(again(db))
		var heard []ear
		for range strings.Fields(home) {
			heard = append(heard, listen(t, sibling))
		}
		err := inside(second)(func() error {
			var errs []error
			for range i { // each takes two indexes, and nobody gets them again
				link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "was"}, PeerName: "there"}
				errs = append(errs, netlink.LinkAdd(link), netlink.LinkDel(link))
			}
			return errors.Join(errs...)
		})
		if err != nil {
			t.Fatal(err)
		}
		add(t, second, net)
		index := 0
		if err := inside(second)(func() error {
			link, err := netlink.LinkByName("eth0")
			if err == nil {
				index = link.Attrs().Index
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if indexes[index] {
			t.Fatalf("two have the index %d: the test has no start", index)
		}
		indexes[index] = true
		for j, a := range strings.Fields(home) {
			if form, mac := heard[j].announcement(netip.MustParseAddr(a)); mac != macOf(t, second) {
				t.Errorf("with the index %d, %s was announced by %q %q, want %s", index, a, form, mac, macOf(t, second))
			}
		}
	}
}

func ask(t *testing.T, sibling *lab.Sandbox, node *lab.Node, address string) {
	t.Helper()
	if err := sibling.Ask(address); err != nil {
		t.Fatalf("a sibling asks: %v", err)
	}
	if err := node.Ask(net.JoinHostPort(address, lab.EchoPort)); err != nil {
		t.Fatalf("the node asks: %v", err)
	}
}

// Without an agent the node itself believes nothing that is old, and the note waits as long as the container lives.
func TestReturnWithoutAgent(t *testing.T) {
	node := newNode(t)
	net := node.Network("net", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/24", "fd01::/64")))
	db := lab.NewPod("default", "db-0", "10")
	first, home := start(t, node, net, db)
	first.Echo()
	sibling, _ := start(t, node, net, lab.NewPod("default", "web-0", ""))
	for _, a := range strings.Fields(home) {
		ask(t, sibling, node, a)
	}
	old := macOf(t, first)
	stop(t, first, net)
	second, _ := start(t, node, net, again(db))
	for _, a := range strings.Fields(home) {
		if got := believed(t, node.Do, a); slices.Contains(got, old) {
			t.Errorf("the node still knows %s as %s", a, old)
		}
	}
	if got := notes(t, node); !slices.Equal(got, []string{second.ID + "@eth0"}) {
		t.Errorf("the queue has %q, want the note of %s", got, second.ID)
	}
	stop(t, second, net)
	if got := notes(t, node); len(got) != 0 {
		t.Errorf("after the end of its container the queue has %q", got)
	}
}

// What waited while no agent ran is announced when it starts; what nobody can read, or nobody holds, goes.
func TestAgentFindsTheQueue(t *testing.T) {
	node := newNode(t)
	net := node.Network("net", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/24")))
	db := lab.NewPod("default", "db-0", "10")
	first, home := start(t, node, net, db)
	sibling, _ := start(t, node, net, lab.NewPod("default", "web-0", ""))
	stop(t, first, net)
	second, _ := start(t, node, net, again(db))
	for _, name := range []string{"nonsense", first.ID + "@eth0", "cafe@eth0"} {
		if err := os.WriteFile(filepath.Join(node.RunDir(), "announce", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	heard := listen(t, sibling)
	node.Agent()
	if form, mac := heard.announcement(netip.MustParseAddr(home)); mac != macOf(t, second) {
		t.Errorf("%s was announced by %q %q, want %s", home, form, mac, macOf(t, second))
	}
	until(t, "the queue is empty", func() bool { return len(notes(t, node)) == 0 })
}

// The chained entry keeps the hardware address, whatever makes the interface.
func TestChainedKeepsTheMAC(t *testing.T) {
	const subnet, subnet6 = "10.1.0.0/24", "fd01::/64"
	for _, tc := range []struct {
		plugin  string
		version string
		conf    func(*lab.Node) lab.Conf
	}{
		{"bridge", "1.1.0", func(n *lab.Node) lab.Conf { return n.Bridge(n.IPAM(subnet, subnet6)) }},
		{"ptp", "1.0.0", func(n *lab.Node) lab.Conf { return n.PTP(n.IPAM(subnet, subnet6)) }},
		{"macvlan", "0.4.0", func(n *lab.Node) lab.Conf { return n.Macvlan(n.IPAM(subnet, subnet6)) }},
		{"flannel", "0.3.1", func(n *lab.Node) lab.Conf {
			ipam := n.IPAM()
			delete(ipam, "ranges")
			return n.Flannel(ipam, subnet, subnet6)
		}},
	} {
		t.Run(tc.plugin, func(t *testing.T) {
			t.Parallel()
			node := newNode(t)
			net := node.Network("net", tc.version, tc.conf(node), lab.Conf{"type": "leasehold"})
			db := lab.NewPod("default", "db-0", "10")
			sandbox, home := start(t, node, net, db)
			sibling, _ := start(t, node, net, lab.NewPod("default", "web-0", ""))
			mac := macOf(t, sandbox)
			sandbox.Echo()
			for _, a := range strings.Fields(home) {
				if err := sibling.Ask(a); err != nil {
					t.Fatalf("a sibling asks: %v", err)
				}
			}
			for range 3 {
				stop(t, sandbox, net)
				var address string
				sandbox, address = start(t, node, net, again(db))
				if address != home {
					t.Fatalf("db-0 came back with %s, want %s", address, home)
				}
				if got := macOf(t, sandbox); got != mac {
					t.Errorf("db-0 came back with the hardware address %s, want %s", got, mac)
				}
				if got := sandbox.MACs[sandbox.IfName]; got != mac {
					t.Errorf("the result says %s, want %s", got, mac)
				}
				if tc.version != "0.3.1" { // which has no CHECK
					if err := sandbox.Check(net); err != nil {
						t.Errorf("CHECK: %v", err)
					}
				}
				sandbox.Echo()
				for _, a := range strings.Fields(home) {
					if got := believed(t, inside(sibling), a); tc.plugin == "bridge" && !slices.Equal(got, []string{mac}) {
						t.Errorf("the sibling knows %s as %v, want %s as ever", a, got, mac)
					}
					if err := sibling.Ask(a); err != nil {
						t.Errorf("a sibling asks: %v", err)
					}
				}
			}
			if macOf(t, sibling) == mac {
				t.Errorf("two pods have the hardware address %s", mac)
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
				if err := net.GC(types.GCAttachment{ContainerID: sandbox.ID, IfName: "eth0"}, types.GCAttachment{ContainerID: sibling.ID, IfName: "eth0"}); err != nil {
					t.Errorf("GC: %v", err)
				}
				if got := macOf(t, sandbox); got != mac {
					t.Errorf("after STATUS and GC it has %s", got)
				}
			}
		})
	}
}

// A pod whose old sandbox lives on gets another address, and another hardware address.
func TestChainedNeverTwice(t *testing.T) {
	node := newNode(t)
	conf := node.Bridge(lab.With(node.IPAM("10.1.0.0/24"), lab.Conf{"busyTimeout": "1ms"}))
	net := node.Network("net", "1.0.0", conf, lab.Conf{"type": "leasehold"})
	db := lab.NewPod("default", "db-0", "10")
	old, home := start(t, node, net, db)
	returned := again(db)
	if _, err := node.Sandbox(returned).Add(net); err == nil {
		t.Fatal("the old sandbox lives, and the first ADD succeeds")
	}
	node.Clock += time.Second
	second, address := start(t, node, net, returned)
	if address == home || macOf(t, second) == macOf(t, old) {
		t.Errorf("beside %s with %s there is now %s with %s", home, macOf(t, old), address, macOf(t, second))
	}
}

// A hardware address that was asked for stays, and becomes the lease's.
func TestChainedLeavesAChosenMAC(t *testing.T) {
	node := newNode(t)
	net := node.Network("net", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/24")), lab.Conf{"type": "leasehold"})
	db := lab.NewPod("default", "db-0", "10")
	first, _ := start(t, node, net, db)
	stop(t, first, net)
	const chosen = "02:11:22:33:44:55"
	second := node.Sandbox(again(db))
	second.Args = append(second.Args, [2]string{"MAC", chosen})
	add(t, second, net)
	if got := macOf(t, second); got != chosen {
		t.Errorf("it has %s, want %s", got, chosen)
	}
	stop(t, second, net)
	third, _ := start(t, node, net, again(db))
	if got := macOf(t, third); got != chosen {
		t.Errorf("it came back with %s, want %s as before", got, chosen)
	}
}

// An interface of a kind that shares its hardware address, and a container that holds nothing, are left as they are.
func TestChainedLeavesOthersAlone(t *testing.T) {
	node := newNode(t)
	s := node.Sandbox(lab.NewPod("default", "db-0", "10"))
	err := inside(s)(func() error {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}); err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "peer"})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, ifName := range []string{"eth0", "eth1"} {
		s.IfName = ifName
		mac := macOf(t, s)
		stdin, _ := json.Marshal(lab.Conf{"cniVersion": "1.0.0", "name": "net", "type": "leasehold", "prevResult": lab.Conf{
			"cniVersion": "1.0.0", "interfaces": []lab.Conf{{"name": ifName, "mac": mac, "sandbox": s.NetNS}}, "ips": []lab.Conf{{"address": "10.1.0.2/24", "interface": 0}},
		}})
		reply := node.Call(lab.Call{Verb: "ADD", ContainerID: s.ID, NetNS: s.NetNS, IfName: ifName, Args: s.CNIArgs(), Stdin: string(stdin)})
		if err := cniError(t, reply); err != nil {
			t.Fatalf("%s: %v", ifName, err)
		}
		if got := macOf(t, s); got != mac || !strings.Contains(reply.Stdout, mac) {
			t.Errorf("%s has %s, want %s as before; the result is %s", ifName, got, mac, reply.Stdout)
		}
	}
	if leases := node.Leases(); len(leases) != 0 {
		t.Errorf("leases came out of nothing: %+v", leases)
	}
}
