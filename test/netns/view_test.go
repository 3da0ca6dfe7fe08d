package netns_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// inContainer runs leasectl in its own mount and PID namespaces, with the node's files but without
// its network namespaces.
func inContainer(node *lab.Node, args string) (string, error) {
	return node.Command("unshare", "--fork", "--pid", "--mount", "--mount-proc", "sh", "-c",
		"mount -t tmpfs none /run/netns && exec "+lab.Bin("leasectl")+" "+args)
}

// TestLeasectlInAContainer verifies that leasectl changes nothing in a container, where every
// sandbox of the node looks dead.
func TestLeasectlInAContainer(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", fourAddresses(lab.Conf{"coolDown": "1s"}))
	start(t, node, net, lab.NewPod("default", "web", ""))
	db := lab.NewPod("default", "db-0", "10")
	start(t, node, net, db)
	held, _ := start(t, node, net, lab.NewPod("default", "held", "10"))
	if err := held.Del(net); err != nil { // its network namespace still exists
		t.Fatal(err)
	}
	before := node.Leases()
	file := filepath.Join(node.NetworksDir(), net.Name, before[0].Address)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"release default/db-0", "release default/web", "release default/held", "release " + before[1].Address,
		"gc", "recover --data-dir " + node.NetworksDir(),
	} {
		out, err := inContainer(node, args)
		if err == nil || !strings.Contains(err.Error(), "the host cannot be seen from here") {
			t.Errorf("leasectl %s in a container: %v\n%s", args, err, out)
		}
		if diff := cmp.Diff(before, node.Leases()); diff != "" {
			t.Fatalf("leasectl %s in a container changed the leases (-before +after):\n%s", args, diff)
		}
	}
	if out, err := inContainer(node, "list"); err != nil || !strings.Contains(out, "db-0") {
		t.Errorf("leasectl list in a container: %v\n%s", err, out)
	}
	if out, err := inContainer(node, "release --force default/db-0"); err != nil {
		t.Errorf("leasectl release --force in a container: %v\n%s", err, out)
	}
	if leases := of(node.Leases(), db); len(leases) != 0 {
		t.Errorf("leases of db-0 after a forced release: %+v", leases)
	}
}

// TestPluginInItsOwnMountNamespace verifies that the plugin works in a mount namespace of its own,
// like that of Multus' daemon, if the network namespaces are mounted there; leasectl gc without
// them changes nothing.
func TestPluginInItsOwnMountNamespace(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	call := func(pod lab.Pod) *lab.Sandbox {
		t.Helper()
		sandbox := node.Sandbox(pod)
		c := sandbox.IPAMCall(net, "ADD")
		c.Wrap = []string{"unshare", "--mount"}
		if err := cniError(t, node.Call(c)); err != nil {
			t.Fatalf("ADD %s: %v", pod.Name, err)
		}
		return sandbox
	}
	call(lab.NewPod("default", "living", ""))
	dead := lab.NewPod("default", "dead", "10")
	call(dead).Remove()
	before := node.Leases()
	for _, wrap := range []string{"unshare --mount", "unshare --fork --pid --mount --mount-proc"} {
		out, err := node.Command("sh", "-c",
			wrap+" sh -c 'mount -t tmpfs none /run/netns && "+lab.Bin("leasectl")+" gc'")
		if err == nil || !strings.Contains(err.Error(), "the host cannot be seen from here") {
			t.Errorf("leasectl gc with %q: %v\n%s", wrap, err, out)
		}
	}
	if diff := cmp.Diff(before, node.Leases()); diff != "" {
		t.Fatalf("leases (-before +after):\n%s", diff)
	}
	if out, err := node.Leasectl("gc"); err != nil || !strings.Contains(out, "default/dead") || strings.Contains(out,
		"living") {
		t.Errorf("leasectl gc on the node: %v\n%s", err, out)
	}
	if leases := of(node.Leases(), dead); len(leases) != 1 || !leases[0].IsHold {
		t.Errorf("leases of the dead pod: %+v, want a hold", leases)
	}
}

// TestFIFOs verifies that no call hangs if a file that the plugin reads is a FIFO.
func TestFIFOs(t *testing.T) {
	for name, tt := range map[string]struct {
		path  func(node *lab.Node) string
		fails string // part of the error of ADD; "" if it succeeds
	}{
		"an address's file":       {func(node *lab.Node) string { return node.NetworksDir() + "/net/10.1.0.10" }, ""},
		"the directory's mark":    {func(node *lab.Node) string { return node.NetworksDir() + "/net/.leasehold" }, ""},
		"host-local's lock":       {func(node *lab.Node) string { return node.NetworksDir() + "/net/lock" }, ""},
		"the network's directory": {func(node *lab.Node) string { return node.NetworksDir() + "/net" }, "lock"},
		"the fork's directory":    {func(node *lab.Node) string { return node.NetworksDir() + "/reserved" }, ""},
		"a cache entry":           {func(node *lab.Node) string { return node.Dir + "/cache/results/net-x-eth0" }, ""},
		"the cache":               {func(node *lab.Node) string { return node.Dir + "/cache/results" }, ""},
		"the network namespace":   {func(node *lab.Node) string { return node.Dir + "/netns" }, "CNI_NETNS"},
		"the store":               {func(node *lab.Node) string { return node.StateDir() + "/leases.db" }, "regular"},
		"the store's mark":        {func(node *lab.Node) string { return node.RunDir() + "/used" }, "regular"},
		"the queue":               {func(node *lab.Node) string { return node.RunDir() + "/queue" }, ""},
		"the announce queue":      {func(node *lab.Node) string { return node.RunDir() + "/announce" }, ""},
		"the calls, counted":      {func(node *lab.Node) string { return node.RunDir() + "/calls" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			node := lab.NewNode(t)
			caches := lab.Conf{"cniCacheDirs": []string{filepath.Join(node.Dir, "cache/results")}}
			net := bridge(node, "10.1.0.0/24", fourAddresses(caches))
			sandbox := node.Sandbox(lab.NewPod("default", "db-0", "10"))
			fifo := tt.path(node)
			if err := errors.Join(os.MkdirAll(filepath.Dir(fifo), 0o755), unix.Mkfifo(fifo, 0o600)); err != nil {
				t.Fatal(err)
			}
			if name == "the network namespace" {
				sandbox.NetNS = fifo
			}
			for _, verb := range []string{"ADD", "ADD", "CHECK", "DEL", "STATUS", "GC"} {
				call := sandbox.IPAMCall(net, verb)
				call.Wrap = []string{"timeout", "8"}
				reply := node.Call(call)
				if reply.Exit == 124 {
					t.Fatalf("%s hangs", verb)
				}
				if verb != "ADD" {
					continue
				}
				err := cniError(t, reply)
				if (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("ADD: %v, want %q", err, tt.fails)
				}
				if name == "an address's file" && strings.Contains(reply.Stdout, "10.1.0.10/24") {
					t.Errorf("ADD assigned an address whose file cannot be read: %s", reply.Stdout)
				}
			}
		})
	}
}
