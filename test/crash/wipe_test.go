package crash_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestWipe removes or damages files of a node with 50 running pods. The next ADD must restore the
// leases from the sources that are left.
func TestWipe(t *testing.T) {
	const pods, hidden = 50, 5
	c := newTestNode(t, 100)
	rng := lab.Rand(t)
	var hiddenOnes []*lab.Sandbox
	for i := range pods {
		sandbox := c.attach(c.net, lab.NewPod("default", fmt.Sprint("pod-", i), []string{"", "10"}[i%2]))
		if i < hidden {
			hide(t, sandbox)
			hiddenOnes = append(hiddenOnes, sandbox)
		}
	}
	store := filepath.Join(c.node.StateDir(), "leases.db")
	mirror, cache := filepath.Join(c.node.NetworksDir(), c.net.Name), filepath.Join(c.node.Dir, "cache")
	for _, harm := range []struct {
		name  string
		do    func() error
		names bool // a source with the names of the pods is left
	}{
		{"rm -rf of the state directory", func() error { return os.RemoveAll(c.node.StateDir()) }, true},
		{"a truncated store, with libcni's cache", func() error {
			return errors.Join(os.Truncate(store, rng.Int64N(64<<10)), os.RemoveAll(mirror))
		}, true},
		{"an empty store", func() error { return os.WriteFile(store, nil, 0o600) }, true},
		{"rm -rf /var/lib/cni", func() error { return errors.Join(os.RemoveAll(mirror), os.RemoveAll(cache)) }, true},
		{"random bytes in the store, with host-local's files", func() error {
			return os.WriteFile(store, garbage(rng, 64<<10), 0o600)
		}, false},
	} {
		must.Succeed(t, harm.do(), harm.name)
		start := time.Now()
		c.attach(c.net, lab.NewPod("default", fmt.Sprint("after-", c.calls), "")) // no address twice
		t.Logf("%s: the next ADD took %s", harm.name, time.Since(start).Round(time.Millisecond))
		c.checkRestored(harm.name, harm.names)
		if t.Failed() {
			t.FailNow()
		}
	}

	// Only the namespaces are left, some without an address in them, and a cache with the newest
	// pod.
	must.Succeed(t, errors.Join(os.RemoveAll(c.node.StateDir()), os.RemoveAll(mirror)))
	sandbox := c.node.Sandbox(lab.NewPod("default", "too-early", ""))
	addrs, err := sandbox.Add(c.net)
	check.Error(t, err, "leasectl recover --accept-loss", "ADD without a complete source", addrs)
	for _, sandbox := range hiddenOnes {
		c.detach(c.net, sandbox)
	}
	out, err := c.node.Leasectl("recover", "--accept-loss")
	must.Succeed(t, err, "leasectl recover --accept-loss", out)
	for i := range 20 {
		c.attach(c.net, lab.NewPod("default", fmt.Sprint("new-", i), ""))
	}
	c.node.Check()
	t.Logf("wipe: %d pods, %d of them with a hidden address; %d calls, no address twice", pods, hidden, c.calls)
}

// checkRestored compares the store with the model, by container and, with names, by pod, and checks
// that host-local's files exist.
func (c *testNode) checkRestored(after string, names bool) {
	c.Helper()
	c.node.Check()
	bound := c.node.LeasesByAddress("--state", "bound")
	for addr, sandbox := range c.owner {
		l := bound[addr]
		if l.Container != sandbox.ID || names && (l.Namespace != sandbox.Pod.Namespace || l.Pod != sandbox.Pod.Name) {
			c.Errorf("%s: %s has pod %q and container %.12q, want %s and %.12s",
				after, addr, l.Pod, l.Container, sandbox.Pod.Name, sandbox.ID)
		}
		_, err := os.Stat(filepath.Join(c.node.NetworksDir(), c.net.Name, addr))
		must.Succeed(c, err, after, "host-local's file of", addr)
	}
}

// hide removes a sandbox's addresses from its network namespace, as gVisor does.
func hide(t *testing.T, sandbox *lab.Sandbox) {
	t.Helper()
	err := ns.WithNetNSPath(sandbox.NetNS, func(ns.NetNS) error {
		link, err := netlink.LinkByName(sandbox.IfName)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, addr := range addrs {
			if err := netlink.AddrDel(link, &addr); err != nil {
				return err
			}
		}
		return nil
	})
	must.Succeed(t, err, "hide the address of", sandbox.Pod.Name)
}

func garbage(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
