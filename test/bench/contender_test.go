package bench_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// A contender is an IPAM plugin on a node of its own. All its calls have one network namespace.
type contender struct {
	b       *testing.B
	node    *lab.Node
	net     *lab.Network
	sandbox *lab.Sandbox
	calls   atomic.Int64
}

// newContender returns a plugin with a number of leases. name is leasehold, host-local, or another
// build of leasehold, which makes its leases itself, because it may not read a newer store.
func newContender(b *testing.B, name, subnet string, leases int) *contender {
	node, plugin := lab.NewNode(b), name
	if filepath.IsAbs(name) {
		plugin = "leasehold"
	}
	ipam := lab.With(node.IPAM(subnet), lab.Conf{"type": plugin})
	c := &contender{b: b, node: node, net: node.Network("bench", "1.0.0", node.Bridge(ipam)),
		sandbox: node.Sandbox(lab.NewPod("default", "bench", "10"))}
	c.install(plugin, program(name))
	switch name {
	case "host-local":
		c.fillHostLocal(leases)
	case "leasehold":
		c.fillLeasehold(subnet, leases)
	default:
		for i := range leases {
			c.call("ADD", fmt.Sprint("filled-", i))
		}
	}
	return c
}

func program(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return lab.Bin(name)
}

// install installs a copy of a program. A program that the linker has written starts a tenth slower
// than a copy, which is in memory in larger pieces (folios).
func (c *contender) install(name, program string) {
	content := must.Read(c.b, program)
	path := filepath.Join(c.node.Dir, "copy-of-"+name)
	must.Succeed(c.b, os.WriteFile(path, content, 0o755))
	c.node.Install(name, path)
}

// prepare returns a call of the verb for the last container of a pod, for ADD of a new one.
func (c *contender) prepare(verb, pod string) lab.Call {
	if verb == "ADD" {
		c.calls.Add(1)
	}
	sandbox, id := *c.sandbox, fmt.Sprintf("%064x", c.calls.Load())
	sandbox.ID = id
	sandbox.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", pod},
		{"K8S_POD_INFRA_CONTAINER_ID", id}, {"K8S_POD_UID", "uid-" + id}}
	return sandbox.IPAMCall(c.net, verb)
}

// call makes a call, and returns its duration.
func (c *contender) call(verb, pod string) time.Duration { return c.do(c.prepare(verb, pod)) }

func (c *contender) do(call lab.Call) time.Duration {
	reply := c.node.Call(call)
	check.Equal(c.b, reply.Exit, 0, call.Verb, reply)
	return reply.Took
}

// pair and del return the duration of an ADD and a DEL of a new container, or of the DEL.
func (c *contender) pair() time.Duration { return c.call("ADD", "bench") + c.call("DEL", "bench") }

func (c *contender) del() time.Duration {
	c.call("ADD", "bench")
	return c.call("DEL", "bench")
}

// refused returns the duration of an ADD that must fail.
func (c *contender) refused() time.Duration {
	reply := c.node.Call(c.prepare("ADD", "new"))
	if reply.Exit == 0 {
		c.b.Fatalf("an ADD in a full pool succeeded: %s", reply.Stdout)
	}
	return reply.Took
}

// addresses returns the first n addresses of either subnet after its gateway.
func addresses(n int) (all []netip.Addr) {
	next := netip.MustParsePrefix(subnet).Addr().Next()
	for range n {
		next = next.Next()
		all = append(all, next)
	}
	return all
}

// fillHostLocal writes files as host-local does.
func (c *contender) fillHostLocal(leases int) {
	dir := filepath.Join(c.node.NetworksDir(), c.net.Name)
	must.Succeed(c.b, os.MkdirAll(dir, 0o755))
	for i, addr := range addresses(leases) {
		content := fmt.Appendf(nil, "filled-%d\r\neth0", i)
		must.Succeed(c.b, os.WriteFile(filepath.Join(dir, addr.String()), content, 0o600))
		must.Succeed(c.b, os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(addr.String()), 0o600))
	}
}

// fillLeasehold writes the leases in one transaction. With calls of the plugin 50,000 would take
// minutes.
func (c *contender) fillLeasehold(subnet string, leases int) {
	if leases == 0 {
		return
	}
	r, err := pool.NewRange(netip.MustParsePrefix(subnet), netip.Addr{}, netip.Addr{}, netip.Addr{})
	must.Succeed(c.b, err)
	set, err := pool.NewSet(r)
	must.Succeed(c.b, err)
	namespaces := c.b.TempDir()
	boot := must.Read(c.b, filepath.Join(c.node.Dir, "boot_id"))
	now := lease.Instant{Wall: time.Now(), BootID: string(boot[:36])}
	p := lease.Pool{DataDir: c.node.NetworksDir(), Network: c.net.Name}
	c.update(func(tx *store.Tx) error {
		if err := errors.Join(tx.SetImported(p), tx.BeginBoot(now.BootID), tx.SetPoolBoot(p, now.BootID)); err != nil {
			return err
		}
		for i, addr := range addresses(leases) {
			// An ADD takes a file with the inode that is in the lease for the holder's namespace.
			path := filepath.Join(namespaces, fmt.Sprint(i))
			var netns syscall.Stat_t
			if err := errors.Join(os.WriteFile(path, nil, 0o600), syscall.Stat(path, &netns)); err != nil {
				return err
			}
			l, err := lease.Apply(lease.Lease{}, lease.Bind{Lease: lease.Lease{
				ID: fmt.Sprintf("%016x", i), Pool: p, Address: addr, Set: set.ID(),
				Namespace: "default", Name: fmt.Sprint("filled-", i), UID: fmt.Sprint("uid-", i),
				Holder: lease.Holder{
					ContainerID: fmt.Sprintf("filled-%059d", i), IfName: "eth0", BootID: now.BootID,
					Netns: lease.Netns{Path: path, Dev: netns.Dev, Ino: netns.Ino},
				},
				Window: lease.Window(10 * time.Minute), CoolDown: 2 * time.Minute,
			}}, now)
			if err := errors.Join(err, tx.Put(p, addr, l), tx.SetCursor(p, set.ID(), addr)); err != nil {
				return err
			}
		}
		return nil
	})
}

// update changes the store of the contender.
func (c *contender) update(fn func(*store.Tx) error) {
	s := store.New(store.Dirs{State: c.node.StateDir(), Run: c.node.RunDir()})
	must.Succeed(c.b, s.Update(context.Background(), fn))
}
