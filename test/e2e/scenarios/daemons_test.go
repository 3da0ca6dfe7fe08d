package scenarios

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

func kubeletRestart(t *Test) {
	n := t.Node(1)
	t.replaceOneOfTwo(n, func(remove func(), _ inspect.Sandbox) {
		t.Step("the kubelet is stopped, echoserver-0 deleted, the kubelet started")
		t.Must(n.Stop(t.Ctx, cluster.Kubelet))
		t.Cleanup(func() { t.runs(n, cluster.Kubelet) })
		remove()
		restarted := time.Now()
		t.Must(n.StartKubelet(t.Ctx))
		t.WaitNode(n, restarted)
	})
}

// replaceOneOfTwo starts two echoservers on a node. restart calls remove, which deletes
// echoserver-0, while it restarts a service of the node; other is echoserver-1's sandbox.
// Afterwards both have their addresses, and echoserver-1 its sandbox.
func (t *Test) replaceOneOfTwo(n *cluster.Node, restart func(remove func(), other inspect.Sandbox)) {
	t.Step("two echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	other := t.Sandbox(n, before["echoserver-1"])
	deleted := Pods{"echoserver-0": before["echoserver-0"]}
	restart(func() { set.Delete(deleted) }, other)
	t.Kept(before, set.ReadyBut(deleted))
	if now := t.Sandbox(n, before["echoserver-1"]); now.ID != other.ID {
		t.Fatalf("echoserver-1 was not deleted, but is in a new sandbox")
	}
}

// runs starts a node's service if it does not run.
func (t *Test) runs(n *cluster.Node, service string) {
	if n.Machine().Services()[service] != 0 {
		return
	}
	if service == cluster.Containerd {
		t.Must(n.StartContainerd(t.Ctx))
	} else {
		t.Must(n.StartKubelet(t.Ctx))
	}
}

func containerdRestartInAdd(t *Test) {
	n := t.Node(1)
	t.Step("an echoserver starts on %s; scaled to 0", n.Name)
	set := t.Echoserver("echoserver", n, 1)
	before := set.Ready()
	set.Scale(0)
	t.Step("the test holds the plugin's lock; scaled to 1")
	unlock := t.lockPlugin(n)
	defer unlock()
	set.Scale(1)
	t.Eventually("the plugin runs", func() error {
		if pids := runningPlugins(n); len(pids) == 0 {
			return errors.New("no plugin runs")
		}
		return nil
	})
	t.Step("the plugin waits; containerd is restarted meanwhile")
	t.Must(n.Kill(t.Ctx, cluster.Containerd))
	t.Cleanup(func() { t.runs(n, cluster.Containerd) })
	if len(runningPlugins(n)) == 0 {
		t.Fatalf("the plugin ended with containerd: the scenario proves nothing")
	}
	unlock()
	t.Must(n.StartContainerd(t.Ctx))
	t.Kept(before, set.Ready())
	t.LeasesAre(n, "Bound", families(t))
}

// lockPlugin holds the lock of the node's IPAM plugin until unlock is called or the scenario ends.
func (t *Test) lockPlugin(n *cluster.Node) (unlock func()) {
	path := filepath.Join(n.Root(), "run/leasehold/lock")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	t.Must(err)
	t.Must(syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	t.Cleanup(func() { f.Close() })
	return func() { f.Close() }
}

// runningPlugins lists the plugin's processes on a node.
func runningPlugins(n *cluster.Node) []string {
	var pids []string
	exes, _ := filepath.Glob(n.Root() + "/proc/[0-9]*/exe")
	for _, exe := range exes {
		if target, err := os.Readlink(exe); err == nil && strings.HasSuffix(target, "/opt/cni/bin/leasehold") {
			pids = append(pids, filepath.Base(filepath.Dir(exe)))
		}
	}
	return pids
}

func containerdKilled(t *Test) {
	n := t.Node(1)
	t.replaceOneOfTwo(n, func(remove func(), other inspect.Sandbox) {
		t.Step("containerd is killed, echoserver-0 deleted")
		t.Must(n.Kill(t.Ctx, cluster.Containerd))
		t.Cleanup(func() { t.runs(n, cluster.Containerd) })
		remove()
		t.Sleep(3 * time.Second)
		if addrs, err := inspect.Addresses(other.NetNS); err != nil || len(addrs["eth0"]) == 0 {
			t.Fatalf("echoserver-1 has lost its network with containerd: %v %v", addrs, err)
		}
		t.Step("containerd starts again")
		t.Must(n.StartContainerd(t.Ctx))
	})
}
