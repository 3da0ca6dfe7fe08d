package crash_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestWipe removes what a node knows, with 50 pods running on the real bridge. Whatever is left must do.
func TestWipe(t *testing.T) {
	const pods, hidden = 50, 5
	c := newCrowd(t, 100, nil)
	rng := dice(t)
	var hiddenOnes []*lab.Sandbox
	for i := range pods {
		box := c.attach(c.net, lab.NewPod("default", fmt.Sprint("pod-", i), []string{"", "10"}[i%2]))
		if i < hidden {
			hide(t, box)
			hiddenOnes = append(hiddenOnes, box)
		}
	}
	store, mirror, cache := filepath.Join(c.node.StateDir(), "leases.db"), filepath.Join(c.node.NetworksDir(), c.net.Name), filepath.Join(c.node.Dir, "cache")
	for _, harm := range []struct {
		name  string
		do    func() error
		names bool // somebody still knows which pods these are
	}{
		{"rm -rf of the state directory", func() error { return os.RemoveAll(c.node.StateDir()) }, true},
		{"the store cut off, libcni's cache as witness", func() error { return errors.Join(os.Truncate(store, rng.Int64N(64<<10)), os.RemoveAll(mirror)) }, true},
		{"an empty store", func() error { return os.WriteFile(store, nil, 0o600) }, true},
		{"rm -rf /var/lib/cni", func() error { return errors.Join(os.RemoveAll(mirror), os.RemoveAll(cache)) }, true},
		{"garbage in the store, the mirror as witness", func() error { return os.WriteFile(store, garbage(rng, 64<<10), 0o600) }, false},
	} {
		if err := harm.do(); err != nil {
			t.Fatalf("%s: %v", harm.name, err)
		}
		start := time.Now()
		c.attach(c.net, lab.NewPod("default", fmt.Sprint("after-", c.calls), "")) // no address twice
		t.Logf("%s: the next ADD took %s", harm.name, time.Since(start).Round(time.Millisecond))
		c.knows(harm.name, harm.names)
		if t.Failed() {
			t.FailNow()
		}
	}

	// Nothing is left but the namespaces, in some of which there is nothing to see, and a cache that has heard of the newest
	// pod alone.
	if err := errors.Join(os.RemoveAll(c.node.StateDir()), os.RemoveAll(mirror)); err != nil {
		t.Fatal(err)
	}
	box := c.node.Sandbox(lab.NewPod("default", "too-early", ""))
	if addrs, err := box.Add(c.net); err == nil || !strings.Contains(err.Error(), "leasectl recover --accept-loss") {
		t.Fatalf("ADD with no witness: %v, %v", addrs, err)
	}
	for _, box := range hiddenOnes {
		c.detach(c.net, box)
	}
	if out, err := c.node.Leasectl("recover", "--accept-loss"); err != nil {
		t.Fatalf("leasectl recover --accept-loss: %v\n%s", err, out)
	}
	for i := range 20 {
		c.attach(c.net, lab.NewPod("default", fmt.Sprint("new-", i), ""))
	}
	c.sound()
	t.Logf("wipe: %d pods, %d of them with an address that nobody sees; %d calls, no address twice", pods, hidden, c.calls)
}

// knows compares the store with the model, by container and, if anybody can know that, by pod; and the mirror with both.
func (c *crowd) knows(after string, names bool) {
	c.Helper()
	c.sound()
	bound := map[string]lab.Lease{}
	for _, l := range c.node.Leases("--state", "bound") {
		bound[l.Address] = l
	}
	for addr, box := range c.owner {
		l := bound[addr]
		if l.Container != box.ID || names && (l.Namespace != box.Pod.Namespace || l.Pod != box.Pod.Name) {
			c.Errorf("%s: %s is of %q in container %.12q, want %s in %.12s", after, addr, l.Pod, l.Container, box.Pod.Name, box.ID)
		}
		if _, err := os.Stat(filepath.Join(c.node.NetworksDir(), c.net.Name, addr)); err != nil {
			c.Errorf("%s: host-local does not know of %s: %v", after, addr, err)
		}
	}
}

// TestDelFirst: after a loss the first call may be a DEL. It is the release of a pod that only libcni's cache remembers.
func TestDelFirst(t *testing.T) {
	for name, lose := range map[string]func(c *crowd) error{
		"the store": func(c *crowd) error { return os.RemoveAll(c.node.StateDir()) },
		"the store and the mirror": func(c *crowd) error {
			return errors.Join(os.RemoveAll(c.node.StateDir()), os.RemoveAll(c.node.NetworksDir()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, 10, nil)
			c.attach(c.net, lab.NewPod("default", "web", ""))
			box := c.attach(c.net, lab.NewPod("default", "db-0", "10"))
			home := c.has(box)
			if err := lose(c); err != nil {
				t.Fatal(err)
			}
			c.detach(c.net, box)
			c.attach(c.net, lab.NewPod("default", "new", ""))
			if got := c.has(c.attach(c.net, box.Pod)); !slices.Equal(got, home) {
				t.Errorf("db-0 comes back with %v instead of %v", got, home)
			}
			c.sound()
		})
	}
}

// hide takes a sandbox's addresses out of its network namespace, as gVisor does.
func hide(t *testing.T, box *lab.Sandbox) {
	t.Helper()
	err := ns.WithNetNSPath(box.NetNS, func(ns.NetNS) error {
		link, err := netlink.LinkByName(box.IfName)
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
	if err != nil {
		t.Fatalf("hide the address of %s: %v", box.Pod.Name, err)
	}
}

func garbage(dice *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(dice.Uint32())
	}
	return b
}
