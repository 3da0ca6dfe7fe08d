package crash_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// long reports whether the tests run in full, as with `make crash`; `make test` runs a short form.
var long = os.Getenv("LONG") != ""

// howMany returns short or full, depending on the form in which the tests run.
func howMany(short, full int) int {
	if long {
		return full
	}
	return short
}

// testNode is a node with many pods, and a model of which running container has which address.
type testNode struct {
	*testing.T
	node *lab.Node
	net  *lab.Network
	pool []string // all usable addresses

	mu    sync.Mutex
	owner map[string]*lab.Sandbox // by address, from the result of the ADD to the start of the DEL
	calls int
}

var subnets atomic.Int64

// newTestNode returns a node with a pool of n addresses, which are not used by other tests.
func newTestNode(t *testing.T, n int) *testNode {
	node := lab.NewNode(t)
	subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + subnets.Add(1)), 0, 0}), 16)
	c := &testNode{T: t, node: node, owner: map[string]*lab.Sandbox{}}
	addr := subnet.Addr().Next() // the gateway
	for range n {
		addr = addr.Next()
		c.pool = append(c.pool, addr.String())
	}
	ranges := [][]lab.Conf{{{"subnet": subnet.String(), "rangeStart": c.pool[0], "rangeEnd": c.pool[n-1]}}}
	ipam := lab.With(node.IPAM(), lab.Conf{
		"ranges": ranges, "cniCacheDirs": []string{filepath.Join(node.Dir, "cache", "results")},
	})
	c.net = node.Network("net", "1.0.0", node.Bridge(ipam))
	return c
}

// as returns the network with other fields in its ipam section, such as another type.
func (c *testNode) as(more lab.Conf) *lab.Network {
	main := lab.With(c.net.Main, lab.Conf{"ipam": lab.With(c.net.Main["ipam"].(lab.Conf), more)})
	return c.node.Network(c.net.Name, c.net.Version, main)
}

// call calls the plugin for a sandbox and updates the model.
func (c *testNode) call(sandbox *lab.Sandbox, verb string) lab.Reply {
	return c.track(sandbox, verb, func() lab.Reply { return sandbox.Call(c.net, verb) })
}

// track runs a call and updates the model. From the result of its ADD to the start of its DEL, no
// other container may get the address of a container (I1).
func (c *testNode) track(sandbox *lab.Sandbox, verb string, call func() lab.Reply) lab.Reply {
	if verb == "DEL" {
		c.forget(sandbox)
	}
	reply := call()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if strings.Contains(reply.Stderr, "goroutine ") || strings.Contains(reply.Stderr, "panicked") {
		c.Errorf("%s panicked: %s", verb, reply.Stderr)
	}
	if verb == "ADD" && reply.Exit == 0 {
		for _, addr := range reply.Addresses() {
			c.take(sandbox, addr)
		}
	}
	return reply
}

func (c *testNode) take(sandbox *lab.Sandbox, addr string) {
	if other := c.owner[addr]; other != nil && other != sandbox {
		c.Errorf("%s was assigned to %s (%.12s) while %s (%.12s) had it",
			addr, sandbox.Pod.Name, sandbox.ID, other.Pod.Name, other.ID) // I1
	}
	c.owner[addr] = sandbox
}

func (c *testNode) forget(sandbox *lab.Sandbox) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, owner := range c.owner {
		if owner == sandbox {
			delete(c.owner, addr)
		}
	}
}

// start calls ADD for a pod and returns its sandbox and its first address.
func (c *testNode) start(pod lab.Pod) (*lab.Sandbox, string) {
	c.Helper()
	sandbox := c.node.Sandbox(pod.Recreated())
	return sandbox, c.mustAdd(sandbox)
}

func (c *testNode) mustAdd(sandbox *lab.Sandbox) string {
	c.Helper()
	reply := c.call(sandbox, "ADD")
	addrs := reply.Addresses()
	if reply.Exit != 0 || len(addrs) == 0 {
		c.Fatalf("ADD of %s: %+v", sandbox.Pod.Name, reply)
	}
	return addrs[0]
}

// stop calls DEL and removes the network namespace.
func (c *testNode) stop(sandbox *lab.Sandbox) {
	c.Helper()
	if reply := c.call(sandbox, "DEL"); reply.Exit != 0 {
		c.Errorf("DEL of %s: %+v", sandbox.Pod.Name, reply)
	}
	sandbox.Remove()
}

// attach calls ADD through libcni and the main plugin, as a runtime does.
func (c *testNode) attach(net *lab.Network, pod lab.Pod) *lab.Sandbox {
	c.Helper()
	sandbox := c.node.Sandbox(pod.Recreated())
	addrs, err := sandbox.Add(net)
	must.Succeed(c, err, "ADD of", pod.Name)
	c.calls++
	for _, addr := range addrs {
		c.take(sandbox, addr)
	}
	return sandbox
}

// detach calls DEL through libcni and the main plugin, as a runtime does.
func (c *testNode) detach(net *lab.Network, sandbox *lab.Sandbox) {
	c.Helper()
	c.forget(sandbox)
	c.calls++
	must.Succeed(c, sandbox.Stop(net), "DEL of", sandbox.Pod.Name)
}

// checkNoLeak assigns all addresses that no running container has, which must succeed (I3), and
// releases them.
func (c *testNode) checkNoLeak() {
	c.Helper()
	c.node.Clock += 24 * time.Hour // all holds expire
	var sandboxes []*lab.Sandbox
	for i := range len(c.pool) - len(c.owner) {
		sandbox := c.node.Sandbox(lab.NewPod("default", fmt.Sprint("filler-", i), ""))
		sandboxes = append(sandboxes, sandbox)
		reply := c.call(sandbox, "ADD")
		if reply.Exit != 0 {
			c.node.Clock += 24 * time.Hour // the first ADD may have found a dead container, and its hold starts then
			reply = c.call(sandbox, "ADD")
		}
		if reply.Exit != 0 {
			c.Errorf("%d of %d addresses are unused, but cannot be assigned: %+v\n%s",
				len(c.pool)-len(c.owner), len(c.pool), reply, c.list("--all")+c.files())
			break
		}
	}
	if reply := c.node.Sandbox(lab.NewPod("default", "one-too-many", "")).Call(c.net, "ADD"); reply.Exit == 0 {
		c.Errorf("ADD succeeded with a full pool: %s", reply.Stdout)
	}
	for _, sandbox := range sandboxes {
		c.stop(sandbox)
	}
	c.node.Clock += 24 * time.Hour
}

func (c *testNode) list(filter ...string) string {
	out, err := c.node.Leasectl(append([]string{"list"}, filter...)...)
	if err != nil {
		return err.Error()
	}
	return out
}

// files lists host-local's files with their contents.
func (c *testNode) files() string {
	out, err := c.node.Command("grep", "--recursive", "", c.node.NetworksDir())
	if err != nil {
		return err.Error()
	}
	return out
}

// checkModel compares the store with the model: every address of a running container must be bound
// to it.
func (c *testNode) checkModel() {
	c.Helper()
	bound := c.node.LeasesByAddress("--state", "bound")
	for addr, sandbox := range c.owner {
		if l := bound[addr]; l.Container != sandbox.ID {
			c.Errorf("%s has %s, but the store has %+v", sandbox.Pod.Name, addr, l)
		}
	}
}

// onTmpfs mounts a tmpfs of the given size at a directory.
func onTmpfs(t *testing.T, dir string, bytes int) {
	t.Helper()
	must.Succeed(t, os.MkdirAll(dir, 0o700))
	must.Succeed(t, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=0700,size=%d", bytes)), "mount", dir)
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}
