package crash_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestClockSteps sets the clock forward and back by hours and days, within a boot and across boots.
func TestClockSteps(t *testing.T) {
	for _, reboot := range []bool{false, true} {
		for _, step := range []time.Duration{-30 * 24 * time.Hour, -3 * time.Hour, 3 * time.Hour, 30 * 24 * time.Hour} {
			t.Run(fmt.Sprintf("%s, reboot %t", step, reboot), func(t *testing.T) {
				c := newTestNode(t, 6, nil)
				pod := lab.NewPod("default", "db-0", "60")
				sandbox, original := c.start(pod)
				c.stop(sandbox)
				c.node.Clock += step
				if reboot {
					c.node.Reboot()
				}
				c.start(lab.NewPod("default", "web", ""))
				sandbox, addr := c.start(pod)
				if step < time.Hour && addr != original { // its window cannot have expired
					t.Errorf("db-0 came back with %s, want %s", addr, original)
				}
				c.stop(sandbox)
				c.node.Clock -= step
				sandbox, back := c.start(pod)
				if step > -time.Hour && back != addr {
					t.Errorf("db-0 came back with %s, want %s", back, addr)
				}
				c.stop(sandbox)
				c.checkStore()
				c.checkNoLeak()
			})
		}
	}
}

// TestClockSetBack verifies that a hold lasts for at most its window after a boot at which the
// clock is days behind.
func TestClockSetBack(t *testing.T) {
	c := newTestNode(t, 6, nil)
	sandbox, _ := c.start(lab.NewPod("default", "db-0", "60"))
	c.stop(sandbox)
	c.node.Reboot()
	c.node.Clock -= 30 * 24 * time.Hour
	_, _ = c.start(lab.NewPod("default", "web", ""))
	c.node.Clock += 3 * time.Hour
	for i := range 5 {
		sandbox := c.node.Sandbox(lab.NewPod("default", fmt.Sprint("filler-", i), ""))
		if reply := c.call(sandbox, "ADD"); reply.Exit != 0 {
			t.Fatalf("ADD three hours after the boot: %+v\n%s", reply, c.list("--all"))
		}
	}
}

// TestNewerRecord verifies that a field of a newer version stays in a record when this version
// changes it.
func TestNewerRecord(t *testing.T) {
	c := newTestNode(t, 6, nil)
	sandbox, original := c.start(lab.NewPod("default", "db-0", "10"))
	extra := append([]byte{0xe7, 0x07, 5}, "later"...) // tag 999, five bytes
	visit := func(write bool) (found []byte) {
		t.Helper()
		err := c.store().Update(context.Background(), func(tx *store.Tx) error {
			l, err := tx.Get(tx.Pools()[0], netip.MustParseAddr(original))
			found = l.Extra
			if err == nil && write {
				l.Extra = extra
				err = tx.Put(l.Pool, l.Address, l)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	visit(true)
	for _, verb := range []string{"ADD", "DEL"} {
		if reply := c.call(sandbox, verb); reply.Exit != 0 {
			t.Fatalf("%s: %+v", verb, reply)
		}
		if found := visit(false); !bytes.Equal(found, extra) {
			t.Errorf("after %s the newer field is %q", verb, found)
		}
	}
	sandbox.Remove()
	if _, addr := c.start(sandbox.Pod); addr != original || !bytes.Equal(visit(false), extra) {
		t.Errorf("db-0 came back with %s and %q, want %s and %q", addr, visit(false), original, extra)
	}
	c.checkStore()
}

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
			c := newTestNode(t, 3*callers, nil)
			for i := range callers {
				c.start(lab.NewPod("default", fmt.Sprint("old-", i), ""))
			}
			path := filepath.Join(c.node.RunDir(), "lock")
			lock, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for i := range callers {
				sandbox := c.node.Sandbox(lab.NewPod("default", fmt.Sprint("new-", i), ""))
				wg.Go(func() {
					reply := c.call(sandbox, "ADD")
					for reply.IsBusy() {
						reply = c.call(sandbox, "ADD")
					}
					if reply.Exit != 0 {
						t.Errorf("ADD: %+v", reply)
					}
				})
			}
			time.Sleep(200 * time.Millisecond) // most calls wait for the lock then
			if err := remove(c, path, filepath.Join(c.node.StateDir(), "leases.db")); err != nil {
				t.Fatal(err)
			}
			lock.Close()
			wg.Wait()
			c.mustAdd(c.node.Sandbox(lab.NewPod("default", "last", "")))
			c.checkModel()
			c.checkStore()
		})
	}
}

// TestClosedPipe verifies that ADD releases the address if the caller has closed the pipe before
// the result is printed.
func TestClosedPipe(t *testing.T) {
	c := newTestNode(t, 6, nil)
	sandbox := c.node.Sandbox(lab.NewPod("default", "db-0", "10"))
	call := sandbox.IPAMCall(c.net, "ADD")
	call.Wrap = []string{"bash", "-c", `(sleep 0.1; exec "$0") | :; exit ${PIPESTATUS[0]}`}
	if reply := c.node.Call(call); reply.Exit == 0 || reply.Stdout != "" ||
		strings.Contains(reply.Stderr, "goroutine ") {
		t.Errorf("ADD with a closed pipe: %+v", reply)
	}
	if bound := c.node.Leases("--state", "bound"); len(bound) > 0 {
		t.Errorf("bound after the failed ADD: %+v", bound)
	}
	c.checkStore()
	if reply := c.call(sandbox, "ADD"); reply.Exit != 0 { // a runtime that retries
		t.Errorf("ADD: %+v", reply)
	}
	c.stop(sandbox)
	c.checkNoLeak()
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
			c := newTestNode(t, 6, nil)
			file := func(name string) string { return filepath.Join(c.node.Dir, name) }
			script := fmt.Sprintf("#!/bin/sh\nexec 2>/dev/null\n>%s\nuntil [ -e %s ]; do sleep 0.02; done\n%s\n>%s\n",
				file("started"), file("go"), lab.Bin("leasehold"), file("done"))
			if err := os.WriteFile(file("late"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
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
			if err := os.WriteFile(file("go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			for n := 0; ; n++ {
				if _, err := os.Stat(file("done")); err == nil {
					break
				} else if n == 6000 {
					t.Fatal("the IPAM plugin did not end within a minute")
				}
				time.Sleep(10 * time.Millisecond)
			}
			if bound := c.node.Leases("--state", "bound"); len(bound) > 0 {
				t.Errorf("bound after the late ADD: %+v", bound)
			}
			sandbox.Remove()
			c.checkNoLeak()
			c.checkStore()
		})
	}
}

// TestLockKept verifies that ADD fails in time, and DEL succeeds, while another process keeps the
// lock.
func TestLockKept(t *testing.T) {
	if !long {
		t.Skip("takes ten seconds")
	}
	c := newTestNode(t, 6, nil)
	sandbox, _ := c.start(lab.NewPod("default", "db-0", "10"))
	lock, err := os.OpenFile(filepath.Join(c.node.RunDir(), "lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		reply := c.node.Sandbox(lab.NewPod("default", "web", "")).Call(c.net, "ADD")
		if reply.Err == nil || reply.Err.Code != 11 {
			t.Errorf("ADD: %+v", reply)
		}
	})
	wg.Go(func() {
		if reply := c.call(sandbox, "DEL"); reply.Exit != 0 {
			t.Errorf("DEL: %+v", reply)
		}
	})
	wg.Wait()
	lock.Close()
	sandbox.Remove()
	c.checkReleased(sandbox)
	c.checkNoLeak()
}
