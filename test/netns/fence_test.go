package netns_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// A runtime repeats DEL, sometimes long after the pod has come back (FACTS 2.8, 5.3), and with less and less to go by.
// None of it may touch the new lease, or the disk.
func TestLateDel(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	pod := lab.NewPod("default", "db-0", "10")
	old, home := start(t, node, net, pod)
	stop(t, old, net)
	current, _ := start(t, node, net, again(pod))
	before := node.Leases()

	for _, tc := range []struct {
		name string
		late func(s *lab.Sandbox)
	}{
		{"as it was", func(s *lab.Sandbox) {}},
		{"without annotations", func(s *lab.Sandbox) { s.Capabilities = nil }},
		{"without CNI_ARGS", func(s *lab.Sandbox) { s.Args = nil }},
		{"without a netns", func(s *lab.Sandbox) { s.NetNS = "" }},
		{"without any of them", func(s *lab.Sandbox) { s.Capabilities, s.Args, s.NetNS = nil, nil, "" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			late := *old
			tc.late(&late)
			for range 3 {
				if err := late.Del(net); err != nil {
					t.Errorf("DEL: %v", err)
				}
			}
			if writes := writesOf(t, node, &late, net, "DEL"); len(writes) != 0 {
				t.Errorf("a DEL that has nothing to do wrote:\n%s", strings.Join(writes, "\n"))
			}
			if diff := cmp.Diff(before, node.Leases()); diff != "" {
				t.Errorf("leases (-before +after):\n%s", diff)
			}
			if err := current.Check(net); err != nil {
				t.Errorf("CHECK of the new container: %v", err)
			}
		})
	}
	if _, address := start(t, node, net, lab.NewPod("default", "third", "")); address == home {
		t.Errorf("a third pod got %s, which db-0 has", address)
	}
	// The same look at a DEL that has something to do, to know that it sees writes at all.
	if writes := writesOf(t, node, current, net, "DEL"); len(writes) == 0 {
		t.Error("no write seen in the holder's own DEL")
	}
}

// writesOf calls the IPAM plugin under strace and returns the system calls that changed something in the node's folders.
func writesOf(t *testing.T, node *lab.Node, s *lab.Sandbox, net *lab.Network, verb string) []string {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	const calls = "write,pwrite64,writev,pwritev,pwritev2,fdatasync,fsync,ftruncate,fallocate,/^rename,/^unlink,/^mkdir,/^link,/^symlink,/^mknod,/^utime"
	call := s.IPAMCall(net, verb)
	call.Wrap = []string{"strace", "-f", "-y", "-qq", "-e", "trace=" + calls, "-e", "signal=none", "-o", trace}
	reply := node.Call(call)
	if err := cniError(t, reply); err != nil {
		t.Errorf("%s: %v", verb, err)
	}
	out, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	var writes []string
	failed := regexp.MustCompile(`= -1 E`)
	for line := range strings.Lines(string(out)) {
		ours := strings.Contains(line, node.Dir) || strings.Contains(line, node.RunDir())
		if ours && !failed.MatchString(line) {
			writes = append(writes, strings.TrimSpace(line))
		}
	}
	return writes
}

// A pod is deleted by force: its successor comes while the old sandbox lives (DESIGN 3, "bind by another holder").
func TestForceDelete(t *testing.T) {
	pod := lab.NewPod("default", "db-0", "10")

	t.Run("the old sandbox outlives busyTimeout", func(t *testing.T) {
		node := newNode(t)
		net := bridge(node, "10.1.0.0/24", lab.Conf{"busyTimeout": "2m"})
		old, home := start(t, node, net, pod)
		successor := again(pod)
		for range 2 {
			_, err := node.Sandbox(successor).Add(net)
			wantCode(t, err, 11, old.ID)
			node.Clock += time.Minute
		}
		node.Clock += time.Second
		next, fresh := start(t, node, net, successor)
		if fresh == home {
			t.Fatalf("got %s, which lives in container %s", fresh, old.ID)
		}

		// The new set owns the key from here on; the old address goes back to the pool.
		stop(t, old, net)
		for _, l := range node.Leases() {
			if l.Address == home && l.Firm {
				t.Errorf("the old address is still kept: %+v", l)
			}
		}
		stop(t, next, net)
		if _, address := start(t, node, net, again(pod)); address != fresh {
			t.Errorf("came back with %s, want %s", address, fresh)
		}
	})

	t.Run("busyTimeout is over and the pool is full", func(t *testing.T) {
		node := newNode(t)
		net := bridge(node, "10.1.0.0/24", few(lab.Conf{"busyTimeout": "2m"}))
		old, home := start(t, node, net, pod)
		for i := range 3 {
			start(t, node, net, lab.NewPod("default", fmt.Sprint("web-", i), ""))
		}
		successor := again(pod)
		_, err := node.Sandbox(successor).Add(net)
		wantCode(t, err, 11, old.ID)
		node.Clock += 3 * time.Minute
		_, err = node.Sandbox(successor).Add(net)
		wantCode(t, err, 11)

		// Without another address the pod has not moved: the old one is still its own.
		stop(t, old, net)
		if ls := of(node.Leases(), pod); len(ls) != 1 || !ls[0].Firm {
			t.Errorf("leases of db-0: %+v, want %s kept", ls, home)
		}
		if _, address := start(t, node, net, successor); address != home {
			t.Errorf("got %s, want %s", address, home)
		}
	})

	t.Run("onBusy refuse", func(t *testing.T) {
		node := newNode(t)
		net := bridge(node, "10.1.0.0/24", lab.Conf{"busyTimeout": "2m", "onBusy": "refuse"})
		old, home := start(t, node, net, pod)
		successor := again(pod)
		for range 3 {
			_, err := node.Sandbox(successor).Add(net)
			wantCode(t, err, 11, old.ID)
			node.Clock += 5 * time.Minute
		}
		stop(t, old, net)
		if _, address := start(t, node, net, successor); address != home {
			t.Errorf("got %s, want %s", address, home)
		}
	})

	t.Run("the old sandbox is gone and no DEL came", func(t *testing.T) {
		node := newNode(t)
		net := bridge(node, "10.1.0.0/24", nil)
		old, home := start(t, node, net, pod)
		old.Remove()
		next, address := start(t, node, net, again(pod))
		if address != home {
			t.Errorf("got %s, want %s", address, home)
		}
		if err := old.Del(net); err != nil {
			t.Errorf("the DEL came after all: %v", err)
		}
		if err := next.Check(net); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	})

	t.Run("its mount is gone and a process lives on in it", func(t *testing.T) {
		node := newNode(t)
		net := bridge(node, "10.1.0.0/24", nil)
		old, home := start(t, node, net, pod)
		process := old.Start("sleep", "1000")
		old.Unmount()
		successor := again(pod)
		_, err := node.Sandbox(successor).Add(net)
		wantCode(t, err, 11, old.ID)
		process.Kill()
		process.Wait()
		if _, address := start(t, node, net, successor); address != home {
			t.Errorf("got %s, want %s", address, home)
		}
	})
}

// The kernel gives the inode number of a namespace that has ended to the next one. A process seen in the new one is no
// sign that the old one lives. Here the old namespace itself plays the new one, under the new one's path: to whoever
// compares numbers it is the same.
func TestReissuedNetNS(t *testing.T) {
	for _, who := range []string{"the pod's own next sandbox", "another pod"} {
		t.Run(who, func(t *testing.T) {
			node := newNode(t)
			net := bridge(node, "10.1.0.0/24", nil)
			pod := lab.NewPod("default", "db-0", "10")
			old, home := start(t, node, net, pod)

			next := node.Sandbox(again(pod))
			heir := next
			if who == "another pod" {
				heir = node.Sandbox(lab.NewPod("default", "other", ""))
			}
			heir.Inherit(old)
			heir.Start("sleep", "1000") // as runtimes do that start the pause container before ADD
			for _, sandbox := range []*lab.Sandbox{heir, next} {
				if err := cniError(t, sandbox.Call(net, "ADD")); err != nil {
					t.Fatalf("ADD %s: %v", sandbox.Pod.Name, err)
				}
			}
			if ls := of(node.Leases(), pod); len(ls) != 1 || ls[0].Address != home || ls[0].Container != next.ID {
				t.Errorf("leases of db-0: %+v, want %s bound to %s", ls, home, next.ID)
			}
		})
	}
}

// An ADD whose runtime gave up goes on as an orphan (FACTS 1.18) and may commit after the runtime's DEL. Its own network
// namespace is gone by then.
func TestLateAdd(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	pod := lab.NewPod("default", "db-0", "10")
	gone := node.Sandbox(pod)
	gone.Remove()
	if err := cniError(t, gone.Call(net, "ADD")); err == nil {
		t.Error("an ADD without its network namespace succeeded")
	}
	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gone.NetNS = plain
	if err := cniError(t, gone.Call(net, "ADD")); err == nil {
		t.Error("an ADD with a plain file for its network namespace succeeded")
	}
	if leases := node.Leases(); len(leases) != 0 {
		t.Errorf("leases left behind: %+v", leases)
	}

	// The same with a successor that is there already: it keeps what it has.
	late, home := start(t, node, net, pod)
	stop(t, late, net)
	current, _ := start(t, node, net, again(pod))
	if err := cniError(t, late.Call(net, "ADD")); err == nil {
		t.Error("a late ADD took the address from the pod's new container")
	}
	if err := current.Check(net); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if leases := node.Leases(); len(leases) != 1 || leases[0].Address != home || leases[0].Container != current.ID {
		t.Errorf("leases: %+v, want %s bound to %s", leases, home, current.ID)
	}
}

// The address stays in the pod while DEL has already been heard (ptp and macvlan call IPAM first, FACTS 1.20): nobody else
// may have it yet.
func TestHoldOfTheLiving(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", few(lab.Conf{"softHold": "1s"}))
	var addresses []string
	var last *lab.Sandbox
	for i := range 4 {
		sandbox, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("pod-", i), ""))
		addresses, last = append(addresses, address), sandbox
	}
	if err := cniError(t, last.Call(net, "DEL")); err != nil { // IPAM's alone: the interface stays
		t.Fatal(err)
	}
	node.Clock += time.Minute
	waiting := lab.NewPod("default", "waiting", "")
	_, err := node.Sandbox(waiting).Add(net)
	wantCode(t, err, 11, "no IP addresses available")
	last.Remove()
	if _, address := start(t, node, net, waiting); address != addresses[3] {
		t.Errorf("got %s, want %s", address, addresses[3])
	}
}
