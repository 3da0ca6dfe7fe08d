package crash_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// long is the form of `make crash`; `make test` tells each story in a short one.
var long = os.Getenv("LONG") != ""

// howMany is a story's size in its two forms.
func howMany(short, whole int) int {
	if long {
		return whole
	}
	return short
}

// dice are random numbers that can be thrown again.
func dice(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SEED: %v", err)
		}
	}
	t.Logf("SEED=%d throws the same dice again", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// A crowd is many pods on one node, and a plain model beside the plugin: which living container was told which address.
type crowd struct {
	*testing.T
	node   *lab.Node
	net    *lab.Network
	pool   []string // every address that there is
	subnet string

	mu    sync.Mutex
	owner map[string]*lab.Sandbox // by address, from its result to its DEL
	calls int
}

var subnets atomic.Int64

// newCrowd is a node with a pool of n addresses, which no other test's node has. More is set in its ipam section.
func newCrowd(t *testing.T, n int, more lab.Conf) *crowd {
	node := lab.NewNode(t)
	subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + subnets.Add(1)), 0, 0}), 16)
	c := &crowd{T: t, node: node, subnet: subnet.String(), owner: map[string]*lab.Sandbox{}}
	addr := subnet.Addr().Next() // the gateway
	for range n {
		addr = addr.Next()
		c.pool = append(c.pool, addr.String())
	}
	ranges := [][]lab.Conf{{{"subnet": c.subnet, "rangeStart": c.pool[0], "rangeEnd": c.pool[n-1]}}}
	ipam := lab.With(node.IPAM(), lab.Conf{"ranges": ranges, "cniCacheDirs": []string{filepath.Join(node.Dir, "cache", "results")}})
	c.net = node.Network("net", "1.0.0", node.Bridge(lab.With(ipam, more)))
	return c
}

// as is the same network with something else in its ipam section, such as another type.
func (c *crowd) as(more lab.Conf) *lab.Network {
	main := lab.With(c.net.Main, lab.Conf{"ipam": lab.With(c.net.Main["ipam"].(lab.Conf), more)})
	return c.node.Network(c.net.Name, c.net.Version, main)
}

// call is one call of the plugin for a sandbox, and what the model learns of it.
func (c *crowd) call(box *lab.Sandbox, verb string) lab.Reply {
	return c.told(box, verb, func() lab.Reply { return box.Call(c.net, verb) })
}

// told keeps the model in step with a call. An address is the container's from the result of its ADD to the beginning of its
// DEL; nobody else may be told it meanwhile (I1).
func (c *crowd) told(box *lab.Sandbox, verb string, call func() lab.Reply) lab.Reply {
	if verb == "DEL" {
		c.forget(box)
	}
	reply := call()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if strings.Contains(reply.Stderr, "goroutine ") || strings.Contains(reply.Stderr, "panicked") {
		c.Errorf("%s panicked: %s", verb, reply.Stderr)
	}
	if verb == "ADD" && reply.Exit == 0 {
		for _, addr := range addressesOf(reply) {
			c.take(box, addr)
		}
	}
	return reply
}

func (c *crowd) take(box *lab.Sandbox, addr string) {
	if other := c.owner[addr]; other != nil && other != box {
		c.Errorf("%s went to %s (%.12s) while %s (%.12s) had it", addr, box.Pod.Name, box.ID, other.Pod.Name, other.ID) // I1
	}
	c.owner[addr] = box
}

func (c *crowd) forget(box *lab.Sandbox) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, owner := range c.owner {
		if owner == box {
			delete(c.owner, addr)
		}
	}
}

// addressesOf reads the result of an ADD.
func addressesOf(reply lab.Reply) (addrs []string) {
	var result struct {
		IPs []struct{ Address string }
	}
	_ = json.Unmarshal([]byte(reply.Stdout), &result)
	for _, ip := range result.IPs {
		addr, _, _ := strings.Cut(ip.Address, "/")
		addrs = append(addrs, addr)
	}
	return addrs
}

// start runs a pod and returns its sandbox and its first address.
func (c *crowd) start(pod lab.Pod) (*lab.Sandbox, string) {
	c.Helper()
	box := c.node.Sandbox(again(pod))
	return box, c.mustAdd(box)
}

func (c *crowd) mustAdd(box *lab.Sandbox) string {
	c.Helper()
	reply := c.call(box, "ADD")
	addrs := addressesOf(reply)
	if reply.Exit != 0 || len(addrs) == 0 {
		c.Fatalf("ADD of %s: %+v", box.Pod.Name, reply)
	}
	return addrs[0]
}

// stop is DEL, and then the network namespace goes.
func (c *crowd) stop(box *lab.Sandbox) {
	c.Helper()
	if reply := c.call(box, "DEL"); reply.Exit != 0 {
		c.Errorf("DEL of %s: %+v", box.Pod.Name, reply)
	}
	box.Remove()
}

// attach and detach go through the network's own plugins, as a runtime does.
func (c *crowd) attach(net *lab.Network, pod lab.Pod) *lab.Sandbox {
	c.Helper()
	box := c.node.Sandbox(again(pod))
	addrs, err := box.Add(net)
	if err != nil {
		c.Fatalf("ADD of %s: %v", pod.Name, err)
	}
	c.calls++
	for _, addr := range addrs {
		c.take(box, addr)
	}
	return box
}

func (c *crowd) detach(net *lab.Network, box *lab.Sandbox) {
	c.Helper()
	c.forget(box)
	c.calls++
	if err := box.Stop(net); err != nil {
		c.Errorf("DEL of %s: %v", box.Pod.Name, err)
	}
}

// has are the addresses that a container was told.
func (c *crowd) has(box *lab.Sandbox) (addrs []string) {
	for addr, owner := range c.owner {
		if owner == box {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return addrs
}

// everyAddress fills the pool to its last address, which must give all of them that nobody has, and empties it again (I3).
func (c *crowd) everyAddress() {
	c.Helper()
	c.node.Clock += 24 * time.Hour // what is held is held no longer
	var boxes []*lab.Sandbox
	for i := range len(c.pool) - len(c.owner) {
		box := c.node.Sandbox(lab.NewPod("default", fmt.Sprint("filler-", i), ""))
		boxes = append(boxes, box)
		reply := c.call(box, "ADD")
		if reply.Exit != 0 {
			c.node.Clock += 24 * time.Hour // a container that nobody missed is found now, and its pod's window begins
			reply = c.call(box, "ADD")
		}
		if reply.Exit != 0 {
			c.Errorf("%d of %d addresses are left over and not to be had: %+v\n%s", len(c.pool)-len(c.owner), len(c.pool), reply, c.list("--all")+c.files())
			break
		}
	}
	if reply := c.node.Sandbox(lab.NewPod("default", "one-too-many", "")).Call(c.net, "ADD"); reply.Exit == 0 {
		c.Errorf("the pool is full, and another pod got %s", reply.Stdout)
	}
	for _, box := range boxes {
		c.stop(box)
	}
	c.node.Clock += 24 * time.Hour
}

func (c *crowd) list(filter ...string) string {
	out, err := c.node.Leasectl(append([]string{"list"}, filter...)...)
	if err != nil {
		return err.Error()
	}
	return out
}

// files are host-local's, with the beginning of what each says.
func (c *crowd) files() string {
	d := newDisk()
	if err := d.load(c.node.NetworksDir()); err != nil {
		return err.Error()
	}
	return d.describe(c.node.NetworksDir())
}

// sound runs the store's own proof of itself.
func (c *crowd) sound() {
	c.Helper()
	if out, err := c.node.Leasectl("check"); err != nil {
		c.Errorf("leasectl check: %v\n%s", err, out)
	}
}

// agrees compares the store with the model: it must know every living container by its addresses.
func (c *crowd) agrees() {
	c.Helper()
	bound := map[string]lab.Lease{}
	for _, l := range c.node.Leases("--state", "bound") {
		bound[l.Address] = l
	}
	for addr, box := range c.owner {
		if l := bound[addr]; l.Container != box.ID {
			c.Errorf("%s was told %s, and the store says %+v", box.Pod.Name, addr, l)
		}
	}
}

// onTmpfs puts a file system of its own, with so many bytes, at a directory.
func onTmpfs(t *testing.T, dir string, bytes int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=0700,size=%d", bytes)); err != nil {
		t.Fatalf("mount %s: %v", dir, err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}
