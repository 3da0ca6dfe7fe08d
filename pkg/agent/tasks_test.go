package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// A pod that came back has its address announced, and its lease gets the hardware address.
func TestAnnounceRecordsTheHardwareAddress(t *testing.T) {
	node, out := newNode(t)
	path := filepath.Join(t.TempDir(), "netns")
	mac, _ := net.ParseMAC("02:00:00:00:00:07")
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with its namespace
		done <- func() error {
			if err := errors.Join(unix.Unshare(unix.CLONE_NEWNET), os.WriteFile(path, nil, 0o600)); err != nil {
				return err
			}
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: mac}, PeerName: "peer"}
			addr, err := netlink.ParseAddr("10.0.0.2/24")
			err = errors.Join(err, netlink.LinkAdd(link), netlink.AddrAdd(link, addr), netlink.LinkSetUp(link))
			if err != nil {
				return err
			}
			peer, err := netlink.LinkByName("peer")
			return errors.Join(err, netlink.LinkSetUp(peer),
				unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""))
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	host := host.New("/proc", host.DefaultBootIDFile)
	netns, err := host.Netns(path)
	if err != nil {
		t.Fatal(err)
	}
	l := bound(t, "10.0.0.2", "db-0", "boot-1")
	l.Holder.Netns, l.BoundAt = netns, node.Service.Node.Clock()
	update(t, node, func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) })
	if err := node.Service.Node.Store.Announce(l.Holder); err != nil {
		t.Fatal(err)
	}
	task := Announce(node, host)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- task.Run(ctx) }()
	var got lease.Lease
	until(t, "the lease has a hardware address", func() bool {
		if err := node.Service.Node.Store.View(t.Context(), func(tx *store.Tx) (err error) {
			got, err = tx.Get(l.Pool, netip.MustParseAddr("10.0.0.2"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return got.MAC != ""
	})
	stop()
	<-ended
	if got.MAC != mac.String() {
		t.Errorf("the lease has the hardware address %q\n%s", got.MAC, out)
	}
	families, err := node.Metrics.(*prometheus.Registry).Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "leasehold_announcements_total" ||
		families[0].Metric[0].Counter.GetValue() != 1 {
		t.Errorf("metrics: %v, %v", families, err)
	}
}

// A spooled DEL is recorded in the store at once. If the view is not proven, nothing is written.
func TestSpooledDELsAreRecorded(t *testing.T) {
	node, _ := newNode(t)
	node.Changes = NewChanges(node.Service.Node.Store.Dirs(), node.Log)
	l := bound(t, "10.0.0.2", "db-0", "boot-1")
	update(t, node, func(tx *store.Tx) error {
		return errors.Join(tx.Put(l.Pool, l.Address, l), tx.SetNamespaceIDs("boot-1 another"))
	})
	spool := func() {
		n := node.Service.Node
		if err := n.Store.Spool(l.Holder.ContainerID, l.Holder.IfName, n.Clock()); err != nil {
			t.Fatal(err)
		}
	}
	waiting := func() int {
		records, err := node.Service.Node.Store.Spooled("boot-1")
		if err != nil {
			t.Fatal(err)
		}
		return len(records)
	}
	spool()
	if err := node.Service.Replay(t.Context()); !errors.Is(err, transact.ErrNoHostView) || waiting() != 1 {
		t.Errorf("without a view: %v, %d wait", err, waiting())
	}
	update(t, node, func(tx *store.Tx) error {
		return tx.SetNamespaceIDs(node.Service.Node.Host.NamespaceIDs("boot-1"))
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	task := Collect(node, &Health{}, nil, NewMetrics(node))
	go func() { ended <- task.Run(ctx) }()
	for range 2 {
		until(t, "it is replayed", func() bool { return waiting() == 0 })
		spool() // of a container that is released: the record alone is removed
	}
	stop()
	<-ended
	journal, _, err := node.Service.Journal(t.Context(), 0)
	if err != nil || len(journal) != 1 || journal[0].Event != store.EventReleased {
		t.Errorf("%v, %v", journal, err)
	}
}
