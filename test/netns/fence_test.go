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

// TestLateDel verifies that a DEL that is repeated after the pod has returned changes neither the
// new lease nor the disk, with any part of its input missing (docs/facts.md, "containerd sends DEL
// three times or more", "kubelet's garbage collection repeats the stop").
func TestLateDel(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	pod := lab.NewPod("default", "db-0", "10")
	old, original := start(t, node, net, pod)
	stop(t, old, net)
	current, _ := start(t, node, net, recreated(pod))
	before := node.Leases()

	for _, tc := range []struct {
		name string
		late func(s *lab.Sandbox)
	}{
		{"unchanged", func(s *lab.Sandbox) {}},
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
				t.Errorf("the late DEL wrote:\n%s", strings.Join(writes, "\n"))
			}
			if diff := cmp.Diff(before, node.Leases()); diff != "" {
				t.Errorf("leases (-before +after):\n%s", diff)
			}
			if err := current.Check(net); err != nil {
				t.Errorf("CHECK of the new container: %v", err)
			}
		})
	}
	if _, address := start(t, node, net, lab.NewPod("default", "third", "")); address == original {
		t.Errorf("a third pod got %s, which db-0 has", address)
	}
	// The DEL of the holder must write, or the check above would be without effect.
	if writes := writesOf(t, node, current, net, "DEL"); len(writes) == 0 {
		t.Error("no write found in the holder's own DEL")
	}
}

// writesOf calls the IPAM plugin under strace and returns the system calls that changed files in
// the node's directories.
func writesOf(t *testing.T, node *lab.Node, s *lab.Sandbox, net *lab.Network, verb string) []string {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	const calls = "write,pwrite64,writev,pwritev,pwritev2,fdatasync,fsync,ftruncate,fallocate," +
		"/^rename,/^unlink,/^mkdir,/^link,/^symlink,/^mknod,/^utime"
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

// TestForceDelete verifies what the successor of a force-deleted pod gets while the old sandbox
// runs (docs/design.md, "A pod returns while its old sandbox lives").
func TestForceDelete(t *testing.T) {
	pod := lab.NewPod("default", "db-0", "10")

	t.Run("the old sandbox outlives busyTimeout", func(t *testing.T) {
		node := newNode(t)
		net := bridge(node, "10.1.0.0/24", lab.Conf{"busyTimeout": "2m"})
		old, original := start(t, node, net, pod)
		successor := recreated(pod)
		for range 2 {
			_, err := node.Sandbox(successor).Add(net)
			wantCode(t, err, 11, old.ID)
			node.Clock += time.Minute
		}
		node.Clock += time.Second
		next, fresh := start(t, node, net, successor)
		if fresh == original {
			t.Fatalf("got %s, which container %s still uses", fresh, old.ID)
		}

		// From now on the new address is the one that is kept; the old one goes back to the pool.
		stop(t, old, net)
		for _, l := range node.Leases() {
			if l.Address == original && l.IsHold {
				t.Errorf("the old address is still held: %+v", l)
			}
		}
		stop(t, next, net)
		if _, address := start(t, node, net, recreated(pod)); address != fresh {
			t.Errorf("came back with %s, want %s", address, fresh)
		}
	})

	t.Run("onBusy refuse", func(t *testing.T) {
		node := newNode(t)
		net := bridge(node, "10.1.0.0/24", lab.Conf{"busyTimeout": "2m", "onBusy": "refuse"})
		old, original := start(t, node, net, pod)
		successor := recreated(pod)
		for range 3 {
			_, err := node.Sandbox(successor).Add(net)
			wantCode(t, err, 11, old.ID)
			node.Clock += 5 * time.Minute
		}
		stop(t, old, net)
		if _, address := start(t, node, net, successor); address != original {
			t.Errorf("got %s, want %s", address, original)
		}
	})

	t.Run("the old sandbox has ended without a DEL", func(t *testing.T) {
		node := newNode(t)
		net := bridge(node, "10.1.0.0/24", nil)
		old, original := start(t, node, net, pod)
		old.Remove()
		next, address := start(t, node, net, recreated(pod))
		if address != original {
			t.Errorf("got %s, want %s", address, original)
		}
		if err := old.Del(net); err != nil {
			t.Errorf("late DEL: %v", err)
		}
		if err := next.Check(net); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	})

	t.Run("the mount of the old namespace is gone, but a process runs in it", func(t *testing.T) {
		node := newNode(t)
		net := bridge(node, "10.1.0.0/24", nil)
		old, original := start(t, node, net, pod)
		process := old.Start("sleep", "1000")
		old.Unmount()
		successor := recreated(pod)
		_, err := node.Sandbox(successor).Add(net)
		wantCode(t, err, 11, old.ID)
		process.Kill()
		process.Wait()
		if _, address := start(t, node, net, successor); address != original {
			t.Errorf("got %s, want %s", address, original)
		}
	})
}

// TestReissuedNetNS verifies that a process in a new namespace is not evidence that an old
// namespace with the same inode number is alive, because the kernel uses the numbers of ended
// namespaces again. The old namespace is mounted at the path of the new one, so that they have the
// same number.
func TestReissuedNetNS(t *testing.T) {
	for _, who := range []string{"the next sandbox of the pod", "another pod"} {
		t.Run(who, func(t *testing.T) {
			node := newNode(t)
			net := bridge(node, "10.1.0.0/24", nil)
			pod := lab.NewPod("default", "db-0", "10")
			old, original := start(t, node, net, pod)

			next := node.Sandbox(recreated(pod))
			reissued := next
			if who == "another pod" {
				reissued = node.Sandbox(lab.NewPod("default", "other", ""))
			}
			reissued.Inherit(old)
			reissued.Start("sleep", "1000") // some runtimes start the pause container before ADD
			for _, sandbox := range []*lab.Sandbox{reissued, next} {
				if err := cniError(t, sandbox.Call(net, "ADD")); err != nil {
					t.Fatalf("ADD %s: %v", sandbox.Pod.Name, err)
				}
			}
			if ls := of(node.Leases(), pod); len(ls) != 1 || ls[0].Address != original || ls[0].Container != next.ID {
				t.Errorf("leases of db-0: %+v, want %s bound to %s", ls, original, next.ID)
			}
		})
	}
}

// TestLateAdd verifies that an ADD that runs after the DEL of its container assigns nothing: its
// network namespace does not exist any more (docs/facts.md, "A killed plugin leaves its IPAM plugin
// running").
func TestLateAdd(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	pod := lab.NewPod("default", "db-0", "10")
	gone := node.Sandbox(pod)
	gone.Remove()
	if err := cniError(t, gone.Call(net, "ADD")); err == nil {
		t.Error("ADD without its network namespace succeeded")
	}
	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gone.NetNS = plain
	if err := cniError(t, gone.Call(net, "ADD")); err == nil {
		t.Error("ADD with a regular file as its network namespace succeeded")
	}
	if leases := node.Leases(); len(leases) != 0 {
		t.Errorf("unexpected leases: %+v", leases)
	}

	// The same if the pod has returned: the new container keeps the address.
	late, original := start(t, node, net, pod)
	stop(t, late, net)
	current, _ := start(t, node, net, recreated(pod))
	if err := cniError(t, late.Call(net, "ADD")); err == nil {
		t.Error("a late ADD succeeded beside the pod's new container")
	}
	if err := current.Check(net); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if leases := node.Leases(); len(leases) != 1 || leases[0].Address != original || leases[0].Container != current.ID {
		t.Errorf("leases: %+v, want %s bound to %s", leases, original, current.ID)
	}
}

// TestHoldOfALivingSandbox verifies that an address is not assigned while its interface exists,
// although DEL has released it and the hold has expired (docs/facts.md, "Some plugins call IPAM
// before the link is gone").
func TestHoldOfALivingSandbox(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", fourAddresses(lab.Conf{"coolDown": "1s"}))
	var addresses []string
	var last *lab.Sandbox
	for i := range 4 {
		sandbox, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("pod-", i), ""))
		addresses, last = append(addresses, address), sandbox
	}
	if err := cniError(t, last.Call(net, "DEL")); err != nil { // of the IPAM plugin only: the interface stays
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
