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
)

// TestDiskFull fills a disk before every call, to its last byte or to the last few pages, and frees it afterwards.
func TestDiskFull(t *testing.T) {
	for name, disk := range map[string]struct {
		of    func(*lab.Node) string
		bytes int
	}{
		"of the store":                     {(*lab.Node).StateDir, 8 << 20},
		"of the store, too small from now": {(*lab.Node).StateDir, 512 << 10}, // no room for blocks in reserve
		"of the mirror":                    {(*lab.Node).NetworksDir, 256 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, 12, nil)
			rng := dice(t)
			dir := disk.of(c.node)
			onTmpfs(t, dir, disk.bytes)
			pods := make([]lab.Pod, 6)
			boxes, homes := make([]*lab.Sandbox, len(pods)), make([]string, len(pods))
			for i := range pods {
				pods[i] = lab.NewPod("default", fmt.Sprint("pod-", i), []string{"", "10"}[i%2])
			}
			refused, spooled := 0, 0
			for n := range howMany(30, 300) {
				i := rng.IntN(len(pods))
				free := fill(t, dir, rng)
				if box := boxes[i]; box != nil {
					boxes[i] = nil
					if reply := c.call(box, "DEL"); reply.Exit != 0 {
						t.Fatalf("call %d, DEL on a full disk: %+v", n, reply)
					} else if strings.Contains(reply.Stderr, "spooled") {
						spooled++
					}
					free()
					box.Remove()
					c.honoured(box)
					continue
				}
				box := c.node.Sandbox(again(pods[i]))
				reply := c.call(box, "ADD")
				free()
				if reply.Exit != 0 {
					if refused++; reply.Err == nil || reply.Err.Code != 5 || !strings.Contains(reply.Err.Error(), "no space left on device") {
						t.Fatalf("call %d, ADD on a full disk: %+v", n, reply)
					}
					reply = c.call(box, "ADD")
				}
				addrs := addressesOf(reply)
				if len(addrs) != 1 {
					t.Fatalf("call %d, ADD after there is room again: %+v", n, reply)
				}
				if homes[i] != "" && i%2 == 1 && addrs[0] != homes[i] {
					t.Errorf("call %d: %s came back with %s instead of %s", n, pods[i].Name, addrs[0], homes[i])
				}
				boxes[i], homes[i] = box, addrs[0]
				c.agrees()
				if t.Failed() {
					t.FailNow()
				}
			}
			c.sound()
			for _, box := range boxes {
				if box != nil {
					c.stop(box)
				}
			}
			c.everyAddress()
			c.sound()
			t.Logf("disk full: %d calls, %d ADDs refused, %d DELs spooled, nothing lost", c.calls, refused, spooled)
		})
	}
}

// TestFullDirectoryIsNotWhole: a file of host-local's could not be written for want of space, and then the store is lost.
// The directory does not pass for one that has all files.
func TestFullDirectoryIsNotWhole(t *testing.T) {
	c := newCrowd(t, 12, nil)
	onTmpfs(t, c.node.NetworksDir(), 256<<10)
	c.start(lab.NewPod("default", "db-0", "10"))
	full := filepath.Join(c.node.NetworksDir(), "ballast")
	if err := os.WriteFile(full, make([]byte, 256<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	_, addr := c.start(lab.NewPod("default", "db-1", "10")) // there is no room for its file
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{c.node.StateDir(), filepath.Join(c.node.Dir, "cache")} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	late := c.node.Sandbox(lab.NewPod("default", "late", ""))
	if reply := c.call(late, "ADD"); reply.Err == nil || !strings.Contains(reply.Err.Error(), "leasectl recover --accept-loss") {
		t.Fatalf("ADD where %s may be forgotten: %+v", addr, reply)
	}
}

// fill leaves a disk a few pages at most. The function that it returns gives the room back.
func fill(t *testing.T, dir string, dice *rand.Rand) (free func()) {
	t.Helper()
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	left := uint64(max(0, dice.IntN(16)-8))
	ballast := filepath.Join(dir, "ballast")
	if disk.Bfree > left {
		if err := os.WriteFile(ballast, make([]byte, (disk.Bfree-left)*uint64(disk.Bsize)), 0o600); err != nil {
			t.Fatalf("ballast: %v", err)
		}
	}
	return func() { os.Remove(ballast) }
}

// honoured tells whether a container's DEL has arrived in the store, at the latest with the next call.
func (c *crowd) honoured(box *lab.Sandbox) {
	c.Helper()
	other := c.node.Sandbox(lab.NewPod("default", "another", ""))
	c.mustAdd(other)
	for _, l := range c.node.Leases("--state", "bound") {
		if l.Container == box.ID {
			c.Errorf("bound after its DEL: %+v", l)
		}
	}
	c.stop(other)
}

// TestReadOnly: what cannot be written is said, and forgotten by nobody.
func TestReadOnly(t *testing.T) {
	c := newCrowd(t, 8, nil)
	onTmpfs(t, c.node.StateDir(), 8<<20)
	onTmpfs(t, c.node.NetworksDir(), 8<<20)
	readOnly := func(dir string, on uintptr) {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|on, ""); err != nil {
			t.Fatalf("remount %s: %v", dir, err)
		}
	}
	box, home := c.start(lab.NewPod("default", "db-0", "10"))
	readOnly(c.node.StateDir(), unix.MS_RDONLY)
	if reply := c.node.Sandbox(lab.NewPod("default", "web", "")).Call(c.net, "ADD"); reply.Err == nil || reply.Err.Code != 5 || !strings.Contains(reply.Err.Error(), "read-only") {
		t.Errorf("ADD on a read-only disk: %+v", reply)
	}
	c.stop(box)
	readOnly(c.node.StateDir(), 0)
	c.honoured(box)

	readOnly(c.node.NetworksDir(), unix.MS_RDONLY)
	second, addr := c.start(box.Pod)
	if addr != home {
		t.Errorf("db-0 came back with %s instead of %s", addr, home)
	}
	c.stop(second)
	readOnly(c.node.NetworksDir(), 0)
	c.honoured(second)
	c.everyAddress()
	c.sound()
}
