package crash_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestDiskFull fills a disk before every call, except for at most a few pages, and frees it
// afterwards.
func TestDiskFull(t *testing.T) {
	for name, disk := range map[string]struct {
		of    func(*lab.Node) string
		bytes int
	}{
		"of the store":                          {(*lab.Node).StateDir, 8 << 20},
		"of the store, without reserved blocks": {(*lab.Node).StateDir, 512 << 10},
		"of host-local's files":                 {(*lab.Node).NetworksDir, 256 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestNode(t, 12)
			rng := lab.Rand(t)
			dir := disk.of(c.node)
			onTmpfs(t, dir, disk.bytes)
			pods := make([]lab.Pod, 6)
			sandboxes, originals := make([]*lab.Sandbox, len(pods)), make([]string, len(pods))
			for i := range pods {
				pods[i] = lab.NewPod("default", fmt.Sprint("pod-", i), []string{"", "10"}[i%2])
			}
			refused, queued := 0, 0
			for n := range howMany(30, 300) {
				i := rng.IntN(len(pods))
				free := fill(t, dir, rng)
				if sandbox := sandboxes[i]; sandbox != nil {
					sandboxes[i] = nil
					if reply := c.call(sandbox, "DEL"); reply.Exit != 0 {
						t.Fatalf("call %d, DEL on a full disk: %+v", n, reply)
					} else if strings.Contains(reply.Stderr, "queued") {
						queued++
					}
					free()
					sandbox.Remove()
					c.checkReleased(sandbox)
					continue
				}
				sandbox := c.node.Sandbox(pods[i].Recreated())
				reply := c.call(sandbox, "ADD")
				free()
				if reply.Exit != 0 {
					if refused++; reply.Err == nil || reply.Err.Code != 5 ||
						!strings.Contains(reply.Err.Error(), "no space left on device") {
						t.Fatalf("call %d, ADD on a full disk: %+v", n, reply)
					}
					reply = c.call(sandbox, "ADD")
				}
				addrs := reply.Addresses()
				if len(addrs) != 1 {
					t.Fatalf("call %d, ADD after freeing the disk: %+v", n, reply)
				}
				if originals[i] != "" && i%2 == 1 && addrs[0] != originals[i] {
					t.Errorf("call %d: %s came back with %s, want %s", n, pods[i].Name, addrs[0], originals[i])
				}
				sandboxes[i], originals[i] = sandbox, addrs[0]
				c.checkModel()
				if t.Failed() {
					t.FailNow()
				}
			}
			c.node.Check()
			for _, sandbox := range sandboxes {
				if sandbox != nil {
					c.stop(sandbox)
				}
			}
			c.checkNoLeak()
			c.node.Check()
			t.Logf("disk full: %d calls, %d ADDs failed, %d DELs queued, nothing lost", c.calls, refused, queued)
		})
	}
}

// fill fills a disk except for at most a few pages. The returned function frees the space.
func fill(t *testing.T, dir string, rng *rand.Rand) (free func()) {
	t.Helper()
	var disk unix.Statfs_t
	must.Succeed(t, unix.Statfs(dir, &disk))
	left := uint64(max(0, rng.IntN(16)-8))
	ballast := filepath.Join(dir, "ballast")
	if disk.Bfree > left {
		must.Succeed(t, os.WriteFile(ballast, make([]byte, (disk.Bfree-left)*uint64(disk.Bsize)), 0o600), "ballast")
	}
	return func() { os.Remove(ballast) }
}

// checkReleased checks that the DEL of a container is in the store after the next call.
func (c *testNode) checkReleased(sandbox *lab.Sandbox) {
	c.Helper()
	other := c.node.Sandbox(lab.NewPod("default", "another", ""))
	c.mustAdd(other)
	for _, l := range c.node.Leases("--state", "bound") {
		if l.Container == sandbox.ID {
			c.Errorf("bound after its DEL: %+v", l)
		}
	}
	c.stop(other)
}
