package crash_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestRemovedWhileWaiting removes or replaces the lock file or the store while calls wait for the
// lock.
func TestRemovedWhileWaiting(t *testing.T) {
	for name, remove := range map[string]func(c *testNode, lock, file string) error{
		"the lock is removed": func(_ *testNode, lock, _ string) error { return os.Remove(lock) },
		"the lock is replaced": func(_ *testNode, lock, _ string) error {
			return errors.Join(os.Remove(lock), os.WriteFile(lock, nil, 0o600))
		},
		"the run directory is removed": func(c *testNode, _, _ string) error { return os.RemoveAll(c.node.RunDir()) },
		"the store is removed":         func(_ *testNode, _, file string) error { return os.Remove(file) },
		"the state directory is removed": func(c *testNode, _, _ string) error {
			return os.RemoveAll(c.node.StateDir())
		},
		"the store is copied": func(_ *testNode, _, file string) error {
			b, err := os.ReadFile(file)
			return errors.Join(err, os.WriteFile(file+".copy", b, 0o600), os.Rename(file+".copy", file))
		},
	} {
		t.Run(name, func(t *testing.T) {
			const callers = 8
			c := newTestNode(t, 3*callers)
			for i := range callers {
				c.start(lab.NewPod("default", fmt.Sprint("old-", i), ""))
			}
			path := filepath.Join(c.node.RunDir(), "lock")
			lock, err := os.OpenFile(path, os.O_RDWR, 0)
			must.Succeed(t, err)
			defer lock.Close()
			must.Succeed(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
			var wg sync.WaitGroup
			for i := range callers {
				sandbox := c.node.Sandbox(lab.NewPod("default", fmt.Sprint("new-", i), ""))
				wg.Go(func() {
					reply := c.call(sandbox, "ADD")
					for reply.IsBusy() {
						reply = c.call(sandbox, "ADD")
					}
					check.Equal(t, reply.Exit, 0, "ADD", reply)
				})
			}
			time.Sleep(200 * time.Millisecond) // most calls wait for the lock then
			must.Succeed(t, remove(c, path, filepath.Join(c.node.StateDir(), "leases.db")))
			lock.Close()
			wg.Wait()
			c.mustAdd(c.node.Sandbox(lab.NewPod("default", "last", "")))
			c.checkModel()
			c.node.Check()
		})
	}
}

// TestParentKilled verifies that no address is leaked if the runtime kills the bridge plugin and
// calls DEL while the IPAM plugin still runs (docs/facts.md, "A killed plugin leaves its IPAM
// plugin running").
func TestParentKilled(t *testing.T) {
	for name, early := range map[string]bool{
		"the sandbox is removed before the late ADD": true,
		"the sandbox is removed after the late ADD":  false,
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestNode(t, 6)
			file := func(name string) string { return filepath.Join(c.node.Dir, name) }
			script := fmt.Sprintf("#!/bin/sh\nexec 2>/dev/null\n>%s\nuntil [ -e %s ]; do sleep 0.02; done\n%s\n>%s\n",
				file("started"), file("go"), lab.Bin("leasehold"), file("done"))
			must.Succeed(t, os.WriteFile(file("late"), []byte(script), 0o755))
			c.node.Install("leasehold", file("late"))
			sandbox := c.node.Sandbox(lab.NewPod("default", "db-0", "10"))
			call := sandbox.IPAMCall(c.net, "ADD")
			call.Plugin, call.Wrap = "bridge", []string{"bash", "-c", fmt.Sprintf(
				`"$0" <&0 & until [ -e %s ]; do sleep 0.02; done; kill -KILL $!; wait $!`, file("started"))}
			if reply := c.node.Call(call); !wasKilled(reply) {
				t.Errorf("the bridge plugin: %+v", reply)
			}
			c.node.Install("leasehold", lab.Bin("leasehold"))
			if reply := c.call(sandbox, "DEL"); reply.Exit != 0 {
				t.Errorf("DEL: %+v", reply)
			}
			if early {
				sandbox.Remove()
			}
			must.Succeed(t, os.WriteFile(file("go"), nil, 0o644))
			background.Until(t, "the IPAM plugin has ended", func() bool {
				_, err := os.Stat(file("done"))
				return err == nil
			})
			check.Empty(t, c.node.Leases("--state", "bound"), "bound after the late ADD")
			sandbox.Remove()
			c.checkNoLeak()
			c.node.Check()
		})
	}
}
