package scenarios

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

func kubeletRestart(w *World) {
	n := w.Node(1)
	w.Step("two echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	sandbox := w.Sandbox(n, before["echoserver-1"])
	w.Step("the kubelet is stopped, echoserver-0 deleted, the kubelet started")
	w.Must(n.Stop(w.Ctx, bed.Kubelet))
	w.Cleanup(func() { w.runs(n, bed.Kubelet) })
	gone := Pods{"echoserver-0": before["echoserver-0"]}
	set.Delete(gone)
	restarted := time.Now()
	w.Must(n.StartKubelet(w.Ctx))
	w.WaitNode(n, restarted)
	w.Kept(before, set.ReadyBut(gone))
	if now := w.Sandbox(n, before["echoserver-1"]); now.ID != sandbox.ID {
		w.Fatalf("echoserver-1, which nobody touched, is in a new sandbox")
	}
}

// runs starts a node's service if it does not run.
func (w *World) runs(n *bed.Node, service string) {
	services, err := n.Machine().Call(w.Ctx, machine.Request{List: true})
	w.Must(err)
	if services.Services[service] != 0 {
		return
	}
	if service == bed.Containerd {
		w.Must(n.StartContainerd(w.Ctx))
	} else {
		w.Must(n.StartKubelet(w.Ctx))
	}
}

func containerdRestartInAdd(w *World) {
	n := w.Node(1)
	w.Step("an echoserver starts on %s; scaled to 0", n.Name)
	set := w.Echoserver("echoserver", n, 1)
	before := set.Ready()
	set.Scale(0)
	w.Step("somebody holds the plugin's lock; scaled to 1")
	unlock := w.lockPlugin(n)
	defer unlock()
	set.Scale(1)
	w.Eventually(30*time.Second, "the plugin is at work", func() error {
		if pids := runningPlugins(n, w.Bed.IPAM); len(pids) == 0 {
			return errors.New("no plugin runs")
		}
		return nil
	})
	w.Step("the plugin waits; containerd is restarted under it")
	w.Must(n.Kill(w.Ctx, bed.Containerd))
	w.Cleanup(func() { w.runs(n, bed.Containerd) })
	if len(runningPlugins(n, w.Bed.IPAM)) == 0 {
		w.Fatalf("the plugin died with containerd: nothing is shown by this")
	}
	unlock()
	w.Must(n.StartContainerd(w.Ctx))
	w.Kept(before, set.Ready())
	w.LeasesAre(n, "Bound", families(w))
}

// lockPlugin holds the lock of the node's IPAM plugin until it is called off.
func (w *World) lockPlugin(n *bed.Node) (unlock func()) {
	path := filepath.Join(n.Root(), "run/leasehold/lock")
	if w.Bed.IPAM == "host-local" {
		path = filepath.Join(n.Root(), "var/lib/cni/networks", n.DefaultNetwork().Name, "lock")
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	w.Must(err)
	w.Must(syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	w.Cleanup(func() { f.Close() })
	return func() { f.Close() }
}

// runningPlugins lists the plugin's processes on a node.
func runningPlugins(n *bed.Node, plugin string) []string {
	var pids []string
	exes, _ := filepath.Glob(n.Root() + "/proc/[0-9]*/exe")
	for _, exe := range exes {
		if target, err := os.Readlink(exe); err == nil && strings.HasSuffix(target, "/opt/cni/bin/"+plugin) {
			pids = append(pids, filepath.Base(filepath.Dir(exe)))
		}
	}
	return pids
}

func containerdKilled(w *World) {
	n := w.Node(1)
	w.Step("two echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	sandbox := w.Sandbox(n, before["echoserver-1"])
	w.Step("containerd is killed, echoserver-0 deleted")
	w.Must(n.Kill(w.Ctx, bed.Containerd))
	w.Cleanup(func() { w.runs(n, bed.Containerd) })
	gone := Pods{"echoserver-0": before["echoserver-0"]}
	set.Delete(gone)
	w.Sleep(3 * time.Second)
	if addrs, err := look.Addresses(sandbox.NetNS); err != nil || len(addrs["eth0"]) == 0 {
		w.Fatalf("echoserver-1 has lost its network with containerd: %v %v", addrs, err)
	}
	w.Step("containerd starts again")
	w.Must(n.StartContainerd(w.Ctx))
	w.Kept(before, set.ReadyBut(gone))
	if now := w.Sandbox(n, before["echoserver-1"]); now.ID != sandbox.ID {
		w.Fatalf("echoserver-1, which nobody touched, is in a new sandbox")
	}
}

func apiAway(w *World) {
	n := w.Node(1)
	w.Step("an echoserver starts on %s", n.Name)
	set := w.Echoserver("echoserver", n, 1)
	before := set.Ready()
	old := w.Sandbox(n, before["echoserver-0"])
	w.Step("the API server and etcd stop; the sandbox %.12s is killed", old.ID)
	back := w.WithoutControl(bed.APIServer, bed.Etcd)
	_, err := n.Machine().Run(w.Ctx, "kill", "-9", strconv.Itoa(old.PID))
	w.Must(err)
	now := old
	w.Eventually(90*time.Second, "a new sandbox", func() error {
		for _, s := range w.sandboxes(n) {
			if s.UID == old.UID && s.Ready && s.ID != old.ID {
				now = s
				return nil
			}
		}
		return errors.New("there is none")
	})
	addrs, err := look.Addresses(now.NetNS)
	w.Must(err)
	w.Step("without an API it runs again, as %v; the control plane returns", addrs["eth0"])
	back()
	if len(addrs["eth0"]) == 0 || addrs["eth0"][0].String() != before["echoserver-0"].Status.PodIP {
		w.Lostf("echoserver-0 had %s and has %v", addresses(before["echoserver-0"]), addrs["eth0"])
	}
	returned := time.Now()
	w.WaitNode(n, returned)
	w.Kept(before, set.Ready())
}
