package netns_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// inContainer runs leasectl in mount and process namespaces of its own, with the node's
// files and without its network namespaces.
func inContainer(node *lab.Node, args string) (string, error) {
	return node.Command("unshare", "--fork", "--pid", "--mount", "--mount-proc", "sh", "-c",
		"mount -t tmpfs none /run/netns && exec "+lab.Bin("leasectl")+" "+args)
}

// From a container every sandbox of the node looks dead. No command may act on that.
func TestLeasectlInAContainer(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", few(lab.Conf{"softHold": "1s"}))
	start(t, node, net, lab.NewPod("default", "web", ""))
	db := lab.NewPod("default", "db-0", "10")
	start(t, node, net, db)
	held, _ := start(t, node, net, lab.NewPod("default", "held", "10"))
	if err := held.Del(net); err != nil { // its namespace is still there, with the address
		t.Fatal(err)
	}
	before := node.Leases()
	file := filepath.Join(node.NetworksDir(), net.Name, before[0].Address)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"release default/db-0", "release default/web", "release default/held", "release " + before[1].Address,
		"gc", "import --data-dir " + node.NetworksDir(), "export",
	} {
		out, err := inContainer(node, args)
		if err == nil || !strings.Contains(err.Error(), "the host cannot be seen from here") {
			t.Errorf("leasectl %s in a container: %v\n%s", args, err, out)
		}
		if diff := cmp.Diff(before, node.Leases()); diff != "" {
			t.Fatalf("leasectl %s in a container changed the leases (-before +after):\n%s", args, diff)
		}
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("export wrote a file from a container")
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

// A lost store is made again by whoever sees the node, and by nobody else.
func TestRecoverInAContainer(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", few(lab.Conf{"softHold": "1s"}))
	_, home := start(t, node, net, lab.NewPod("default", "web", ""))
	lose := func() {
		t.Helper()
		for _, dir := range []string{node.StateDir(), node.NetworksDir()} {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	recover := "recover --network net --data-dir " + node.NetworksDir() + " --cni-cache-dir " + filepath.Join(node.Dir, "cache/results")
	lose()
	if out, err := inContainer(node, recover); err == nil || !strings.Contains(err.Error(), "the host cannot be seen from here") {
		t.Errorf("leasectl recover in a container: %v\n%s", err, out)
	}
	if out, err := inContainer(node, recover+" --accept-loss"); err != nil || !strings.Contains(out, "accepted") {
		t.Errorf("leasectl recover --accept-loss in a container: %v\n%s", err, out)
	}
	if leases := node.Leases(); len(leases) != 0 {
		t.Errorf("adopted in a container: %+v", leases)
	}
	node.Clock += time.Hour
	for range 3 {
		if _, address := start(t, node, net, lab.NewPod("default", "next", "")); address == home {
			t.Errorf("the next pod got %s, which a living pod has", home)
		}
	}
}

// A runtime may call the plugin in mounts of its own, as Multus does in those of its daemon.
// Whoever sees its network namespaces sees the node.
func TestThePluginMayHaveMountsOfItsOwn(t *testing.T) {
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
		out, err := node.Command("sh", "-c", wrap+" sh -c 'mount -t tmpfs none /run/netns && "+lab.Bin("leasectl")+" gc'")
		if err == nil || !strings.Contains(err.Error(), "the host cannot be seen from here") {
			t.Errorf("leasectl gc behind %q: %v\n%s", wrap, err, out)
		}
	}
	if diff := cmp.Diff(before, node.Leases()); diff != "" {
		t.Fatalf("leases (-before +after):\n%s", diff)
	}
	if out, err := node.Leasectl("gc"); err != nil || !strings.Contains(out, "default/dead") || strings.Contains(out, "living") {
		t.Errorf("leasectl gc on the node: %v\n%s", err, out)
	}
	if leases := of(node.Leases(), dead); len(leases) != 1 || !leases[0].Firm {
		t.Errorf("leases of the dead pod: %+v, want a firm hold", leases)
	}
}

// A process 1 that is confined may not be looked at, also by root. It is in the host's own network
// namespace: a pod's former sandbox is proven to be gone all the same.
func TestProcessOneIsConfined(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	pod := lab.NewPod("default", "db-0", "10")
	old, home := start(t, node, net, pod)
	old.Remove()
	c := node.Sandbox(again(pod)).IPAMCall(net, "ADD")
	c.Wrap = []string{"setpriv", "--bounding-set", "-sys_ptrace", "--"} // process 1 has more than that
	reply := node.Call(c)
	if err := cniError(t, reply); err != nil {
		t.Fatalf("ADD: %v", err)
	}
	if !strings.Contains(reply.Stdout, home+"/24") {
		t.Errorf("db-0 comes back with %s, want %s", reply.Stdout, home)
	}
}
