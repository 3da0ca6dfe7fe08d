package scenarios

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
)

func sandboxKilled(w *World) {
	n := w.Node(1)
	w.Step("an echoserver starts on %s", n.Name)
	set := w.Echoserver("echoserver", n, 1)
	w.killSandboxes(set)
}

// killSandboxes kills the pause process of each pod, waits for the new sandbox, and wants the address in it.
func (w *World) killSandboxes(set *Set) {
	before := set.Ready()
	old := map[string]string{}
	for name, pod := range before {
		s := w.Sandbox(set.Node, pod)
		old[name] = s.ID
		w.Step("the sandbox %.12s of %s is killed", s.ID, name)
		_, err := set.Node.Machine().Run(w.Ctx, "kill", "-9", strconv.Itoa(s.PID))
		w.Must(err)
	}
	lost := ""
	for name, pod := range before {
		w.Eventually(90*time.Second, "a new sandbox of "+name, func() error {
			for _, s := range w.sandboxes(set.Node) {
				if s.UID == string(pod.UID) && s.Ready && s.ID != old[name] {
					now, err := look.Addresses(s.NetNS)
					w.Must(err)
					if len(now["eth0"]) == 0 {
						return fmt.Errorf("no address yet")
					}
					if now["eth0"][0].String() != pod.Status.PodIP {
						lost = fmt.Sprintf("%s had %s and has %v", name, pod.Status.PodIP, now["eth0"])
					}
					return nil
				}
			}
			return fmt.Errorf("there is none")
		})
	}
	if lost != "" {
		w.Lostf("%s", lost)
	}
}

func forceDelete(w *World) {
	n := w.Node(1)
	w.Step("an echoserver starts on %s", n.Name)
	set := w.Echoserver("echoserver", n, 1, Stubborn(20*time.Second))
	before := set.Ready()
	old := w.Sandbox(n, before["echoserver-0"])
	w.Step("its container hangs in sandbox %.12s, so that nobody can end it; it is force-deleted", old.ID)
	resume := w.hang(n, old)
	set.ForceDelete(before)
	var refused []string
	w.Eventually(time.Minute, "the new pod is refused, or gets an address", func() error {
		pod, ok := set.Pods()["echoserver-0"]
		if !ok || pod.UID == before["echoserver-0"].UID {
			return errors.New("there is no new pod")
		}
		refused = w.Events(string(pod.UID), "FailedCreatePodSandBox")
		if len(refused) == 0 && !ready(pod) {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	addrs, err := look.Addresses(old.NetNS)
	w.Must(err)
	if strings.ReplaceAll(addresses(before["echoserver-0"]), ",", " ") != strings.Trim(fmt.Sprint(addrs["eth0"]), "[]") {
		w.Fatalf("the old pod has %v, not what it had: was there an overlap at all?", addrs)
	}
	if len(refused) > 0 {
		w.Step("the new pod is refused: %s", refused[0])
		if !strings.Contains(refused[0], old.ID[:12]) {
			w.Fatalf("this does not name the old sandbox %s", old.ID)
		}
		w.Step("the old container can be ended again")
	}
	resume()
	// Nobody may have had the address twice on the way: the watch over all scenarios sees to that.
	w.Kept(before, set.ReadyBut(before))
}

// hang makes a sandbox one that nobody can end, until resume is called: its shim, the parent of the pause process, is
// stopped, and every request to kill waits.
func (w *World) hang(n *bed.Node, s look.Sandbox) (resume func()) {
	shim := func(signal string) {
		_, err := n.Machine().Run(w.Ctx, "sh", "-c", `kill -`+signal+` "$0"`, s.Shim)
		w.Must(err)
	}
	shim("STOP")
	resume = sync.OnceFunc(func() { shim("CONT") })
	w.Cleanup(resume)
	return resume
}

func busyTimeout(w *World) {
	n := w.Node(2)
	w.Networks(n, bed.Network{Name: w.NS, Type: "bridge", IPAM: map[string]any{"busyTimeout": "5s"},
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.249.0.0/24")}})
	w.Step("an echoserver starts on %s, where a pod waits 5 s for its predecessor", n.Name)
	set := w.Echoserver("echoserver", n, 1)
	before := set.Ready()
	old := w.Sandbox(n, before["echoserver-0"])
	resume := w.hang(n, old)
	w.Step("its container hangs, it is force-deleted")
	set.ForceDelete(before)
	after := set.ReadyBut(before)
	if addresses(after["echoserver-0"]) == addresses(before["echoserver-0"]) {
		w.Fatalf("the new pod has %s, which the old one still has", addresses(after["echoserver-0"]))
	}
	w.Step("it runs as %s, as the old one lives on; now that one can end", addresses(after["echoserver-0"]))
	resume()
	w.Eventually(time.Minute, "the old sandbox stops", func() error {
		for _, s := range w.sandboxes(n) {
			if s.ID == old.ID && s.Ready {
				return errors.New("it runs")
			}
		}
		return nil
	})
	w.Step("from now on the new address is the pod's")
	w.Kept(after, set.Recreate())
	w.LeasesAre(n, "Bound", 1)
}

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
	services, err := n.Machine().Call(w.Ctx, listServices)
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
	w.Must(w.Bed.StopControl(w.Ctx, bed.APIServer))
	w.Must(w.Bed.StopControl(w.Ctx, bed.Etcd))
	back := func() {
		w.Must(w.Bed.RunControl(w.Ctx))
	}
	w.Cleanup(back)
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

func cutOff(w *World) {
	n := w.Node(2)
	w.Step("two echoservers start on %s, which is then cut off", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	w.Must(n.CutOff())
	w.Cleanup(func() { w.Must(n.Reconnect()) })
	gone := Pods{"echoserver-0": before["echoserver-0"]}
	set.Delete(gone)
	w.Eventually(time.Minute, "the cluster misses the node", func() error {
		node, err := w.Client.CoreV1().Nodes().Get(w.Ctx, n.Name, metav1.GetOptions{})
		w.Must(err)
		if bed.NodeReady(node) {
			return errors.New("it is still Ready")
		}
		return nil
	})
	w.Step("echoserver-0 was deleted meanwhile; the node returns")
	w.Must(n.Reconnect())
	w.WaitNode(n, time.Now())
	w.Kept(before, set.ReadyBut(gone))
}

func cordon(w *World) {
	n := w.Node(1)
	w.Step("an echoserver starts on %s, which is then cordoned", n.Name)
	set := w.Echoserver("echoserver", n, 1)
	before := set.Ready()
	w.Cordon(n, true)
	w.Cleanup(func() { w.Cordon(n, false) })
	set.Delete(before)
	w.Eventually(time.Minute, "the new pod waits", func() error {
		pod, ok := set.Pods()["echoserver-0"]
		if !ok || pod.UID == before["echoserver-0"].UID {
			return errors.New("there is none")
		}
		if pod.Spec.NodeName != "" {
			w.Fatalf("it was sent to %s", pod.Spec.NodeName)
		}
		return nil
	})
	w.Step("the new pod waits; four others come, on a node that takes pods again")
	w.LeasesAre(n, "Held", families(w))
	w.Cordon(n, false)
	w.strangers("others", n, 4, before)
	w.Kept(before, set.ReadyBut(before))
}

// Cordon closes a node to new pods, or opens it.
func (w *World) Cordon(n *bed.Node, closed bool) {
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%v}}`, closed)
	_, err := w.Client.CoreV1().Nodes().Patch(w.Ctx, n.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	w.Must(err)
}

func reboot(w *World) {
	n := w.Node(2)
	w.Step("three echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 3)
	before := set.Ready()
	bootID := w.bootID(n)
	w.Step("the plug is pulled, and put back")
	w.Must(n.PowerOff(w.Ctx))
	w.Cleanup(func() { w.on(n) })
	booted := time.Now()
	w.Must(n.PowerOn(w.Ctx))
	w.WaitNode(n, booted)
	var after Pods
	w.Eventually(2*time.Minute, "the pods run again", func() error {
		after = set.Pods()
		for name, p := range after {
			if p.UID != before[name].UID {
				w.Fatalf("%s was replaced", name)
			}
			if !ready(p) || p.Status.ContainerStatuses[0].RestartCount == 0 {
				return fmt.Errorf("%s does not", name)
			}
		}
		return nil
	})
	if w.bootID(n) == bootID {
		w.Fatalf("the node reports the boot id that it had")
	}
	w.Kept(before, after)
	w.LeasesAre(n, "Bound", 3*families(w))
}

func (w *World) bootID(n *bed.Node) string {
	node, err := w.Client.CoreV1().Nodes().Get(w.Ctx, n.Name, metav1.GetOptions{})
	w.Must(err)
	return node.Status.NodeInfo.BootID
}

// on sees that a node is on.
func (w *World) on(n *bed.Node) {
	if w.Bed.PID(n.Name) == 0 {
		w.Must(n.PowerOn(w.Ctx))
	}
	w.WaitNode(n, time.Now())
}

func rebootReplaced(w *World) {
	n := w.Node(2)
	w.Step("two echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	w.Step("the plug is pulled, the pods are force-deleted and replaced")
	w.Must(n.PowerOff(w.Ctx))
	w.Cleanup(func() { w.on(n) })
	set.ForceDelete(before)
	w.Eventually(time.Minute, "new pods", func() error {
		pods := set.Pods()
		for name, old := range before {
			if p, ok := pods[name]; !ok || p.UID == old.UID {
				return fmt.Errorf("no new %s", name)
			}
		}
		return nil
	})
	booted := time.Now()
	w.Must(n.PowerOn(w.Ctx))
	w.WaitNode(n, booted)
	after := set.ReadyBut(before)
	w.Kept(before, after)
	w.Step("the new pods run; waiting until the kubelet has removed the old sandboxes")
	w.Eventually(150*time.Second, "the old sandboxes go", func() error {
		for _, s := range w.sandboxes(n) {
			if s.UID == string(before[s.Pod].UID) {
				return fmt.Errorf("%.12s of %s is there", s.ID, s.Pod)
			}
		}
		return nil
	})
	w.Kept(before, set.Ready())
	w.LeasesAre(n, "Bound", 2*families(w))
}
