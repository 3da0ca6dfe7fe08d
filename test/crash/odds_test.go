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
				c := newCrowd(t, 6, nil)
				pod := lab.NewPod("default", "db-0", "60")
				box, home := c.start(pod)
				c.stop(box)
				c.node.Clock += step
				if reboot {
					c.node.Reboot()
				}
				c.start(lab.NewPod("default", "web", ""))
				box, addr := c.start(pod)
				if step < time.Hour && addr != home { // its window cannot be over yet
					t.Errorf("db-0 came back with %s instead of %s", addr, home)
				}
				c.stop(box)
				c.node.Clock -= step
				box, back := c.start(pod)
				if step > -time.Hour && back != addr {
					t.Errorf("db-0 came back with %s instead of %s", back, addr)
				}
				c.stop(box)
				c.sound()
				c.everyAddress()
			})
		}
	}
}

// TestClockSetBack: a node boots with its clock days behind. A hold may last for its window again, and no longer.
func TestClockSetBack(t *testing.T) {
	c := newCrowd(t, 6, nil)
	box, _ := c.start(lab.NewPod("default", "db-0", "60"))
	c.stop(box)
	c.node.Reboot()
	c.node.Clock -= 30 * 24 * time.Hour
	_, _ = c.start(lab.NewPod("default", "web", ""))
	c.node.Clock += 3 * time.Hour
	for i := range 5 {
		box := c.node.Sandbox(lab.NewPod("default", fmt.Sprint("filler-", i), ""))
		if reply := c.call(box, "ADD"); reply.Exit != 0 {
			t.Fatalf("three hours after a hold of one began again: %+v\n%s", reply, c.list("--all"))
		}
	}
}

// TestNewerRecord: a field that a newer version has put into a record survives all that this version does with it.
func TestNewerRecord(t *testing.T) {
	c := newCrowd(t, 6, nil)
	box, home := c.start(lab.NewPod("default", "db-0", "10"))
	extra := append([]byte{0xe7, 0x07, 5}, "later"...) // tag 999, five bytes
	visit := func(write bool) (found []byte) {
		t.Helper()
		err := c.store().Update(context.Background(), func(tx *store.Tx) error {
			l, err := tx.Get(tx.Pools()[0], netip.MustParseAddr(home))
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
		if reply := c.call(box, verb); reply.Exit != 0 {
			t.Fatalf("%s: %+v", verb, reply)
		}
		if found := visit(false); !bytes.Equal(found, extra) {
			t.Errorf("after %s the newer field is %q", verb, found)
		}
	}
	box.Remove()
	if _, addr := c.start(box.Pod); addr != home || !bytes.Equal(visit(false), extra) {
		t.Errorf("db-0 came back with %s and %q, want %s and %q", addr, visit(false), home, extra)
	}
	c.sound()
}

// TestTakenAway removes or replaces the lock or the store while many calls wait for them.
func TestTakenAway(t *testing.T) {
	for name, take := range map[string]func(c *crowd, lock, file string) error{
		"the lock is removed": func(_ *crowd, lock, _ string) error { return os.Remove(lock) },
		"the lock is replaced": func(_ *crowd, lock, _ string) error {
			return errors.Join(os.Remove(lock), os.WriteFile(lock, nil, 0o600))
		},
		"the run directory is removed":   func(c *crowd, _, _ string) error { return os.RemoveAll(c.node.RunDir()) },
		"the store is removed":           func(_ *crowd, _, file string) error { return os.Remove(file) },
		"the state directory is removed": func(c *crowd, _, _ string) error { return os.RemoveAll(c.node.StateDir()) },
		"the store is copied": func(_ *crowd, _, file string) error {
			b, err := os.ReadFile(file)
			return errors.Join(err, os.WriteFile(file+".copy", b, 0o600), os.Rename(file+".copy", file))
		},
	} {
		t.Run(name, func(t *testing.T) {
			const callers = 8
			c := newCrowd(t, 3*callers, nil)
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
				box := c.node.Sandbox(lab.NewPod("default", fmt.Sprint("new-", i), ""))
				wg.Go(func() {
					if reply := c.call(box, "ADD"); reply.Exit != 0 {
						t.Errorf("ADD: %+v", reply)
					}
				})
			}
			time.Sleep(200 * time.Millisecond) // most of them wait by now; whoever does not comes too late for nothing
			if err := take(c, path, filepath.Join(c.node.StateDir(), "leases.db")); err != nil {
				t.Fatal(err)
			}
			lock.Close()
			wg.Wait()
			c.mustAdd(c.node.Sandbox(lab.NewPod("default", "last", "")))
			c.agrees()
			c.sound()
		})
	}
}

// TestNobodyListens: the caller has closed its end of the pipe before the result is printed.
func TestNobodyListens(t *testing.T) {
	c := newCrowd(t, 6, nil)
	box := c.node.Sandbox(lab.NewPod("default", "db-0", "10"))
	call := box.IPAMCall(c.net, "ADD")
	call.Wrap = []string{"bash", "-c", `(sleep 0.1; exec "$0") | :; exit ${PIPESTATUS[0]}`}
	if reply := c.node.Call(call); reply.Exit == 0 || reply.Stdout != "" || strings.Contains(reply.Stderr, "goroutine ") {
		t.Errorf("ADD without a listener: %+v", reply)
	}
	if bound := c.node.Leases("--state", "bound"); len(bound) > 0 {
		t.Errorf("nobody was told of %+v", bound)
	}
	c.sound()
	if reply := c.call(box, "ADD"); reply.Exit != 0 { // a runtime that asks again
		t.Errorf("ADD: %+v", reply)
	}
	c.stop(box)
	c.everyAddress()
}

// TestParentKilled: the runtime kills the bridge plugin, whose IPAM plugin goes on alone, while the runtime cleans up (FACTS
// 1.18). The late ADD must not leave an address behind that nobody gives back.
func TestParentKilled(t *testing.T) {
	for name, early := range map[string]bool{"the sandbox is gone before the late ADD": true, "the sandbox goes after the late ADD": false} {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, 6, nil)
			late, over := filepath.Join(c.node.Dir, "late"), filepath.Join(c.node.Dir, "over")
			script := fmt.Sprintf("#!/bin/sh\nsleep 1.5\n%s\necho >%s\n", lab.Bin("leasehold"), over)
			if err := os.WriteFile(late, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			c.node.Install("leasehold", late)
			box := c.node.Sandbox(lab.NewPod("default", "db-0", "10"))
			call := box.IPAMCall(c.net, "ADD")
			call.Plugin, call.Wrap = "bridge", []string{"timeout", "--foreground", "--signal=KILL", "1"}
			if reply := c.node.Call(call); !wasKilled(reply) {
				t.Errorf("the bridge plugin: %+v", reply)
			}
			c.node.Install("leasehold", lab.Bin("leasehold"))
			if reply := c.call(box, "DEL"); reply.Exit != 0 {
				t.Errorf("DEL: %+v", reply)
			}
			if early {
				box.Remove()
			}
			for n := 0; ; n++ {
				if _, err := os.Stat(over); err == nil {
					break
				} else if n == 1000 {
					t.Fatal("the IPAM plugin did not go on alone")
				}
				time.Sleep(10 * time.Millisecond)
			}
			if bound := c.node.Leases("--state", "bound"); len(bound) > 0 { // nobody was told
				t.Errorf("bound after the late ADD: %+v", bound)
			}
			box.Remove()
			c.everyAddress()
			c.sound()
		})
	}
}

// TestLockKept: whoever keeps the lock stops no DEL and no node, and ADD says so in time.
func TestLockKept(t *testing.T) {
	if !long {
		t.Skip("it takes ten seconds")
	}
	c := newCrowd(t, 6, nil)
	box, _ := c.start(lab.NewPod("default", "db-0", "10"))
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
		if reply := c.call(box, "DEL"); reply.Exit != 0 {
			t.Errorf("DEL: %+v", reply)
		}
	})
	wg.Wait()
	lock.Close()
	box.Remove()
	c.honoured(box)
	c.everyAddress()
}
