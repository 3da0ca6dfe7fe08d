package scenarios

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// released waits until the journal of a node says that the address of a pod was released by a DEL.
func (t *Test) released(n *cluster.Node, pod corev1.Pod) {
	if reason := t.journaled(n, pod, "Released", time.Time{}); reason != "DEL" {
		t.Fatalf("the address of %s was released: %s", pod.Name, reason)
	}
}

func crioGC(t *Test) {
	n := t.Node(2)
	t.Step("three echoservers start on %s, scaled to 2, and one without a window, whose sandbox CRI-O loses", n.Name)
	set := t.Echoserver("echoserver", n, 3)
	plain := t.Echoserver("plain", n, 1, KeptFor(""))
	before, gone := set.Ready(), plain.Ready()
	set.Scale(2)
	t.LeasesAre(n, "Held", families(t), "echoserver-2")
	var sandboxes []string
	for _, name := range []string{"echoserver-0", "echoserver-1"} {
		sandboxes = append(sandboxes, t.Sandbox(n, before[name]).ID)
	}
	t.forgetSandboxes(n, gone)
	plain.Resize(0)
	t.forceDelete(gone)
	t.resume(n)
	t.released(n, gone["plain-0"])
	t.Step("its address is released by a DEL of CRI-O's GC; the others run on")
	for i, name := range []string{"echoserver-0", "echoserver-1"} {
		t.leasedTo(n, addresses(before[name]), sandboxes[i])
	}
	t.LeasesAre(n, "Held", families(t), "echoserver-2")
	set.Scale(3)
	t.Kept(before, set.Ready())
	t.Kept(before, set.Recreate())
}

func crioDEL(t *Test) {
	n := t.Node(2)
	t.Step("two echoservers start on %s; the second one's DEL fails in a plugin before leasehold is called", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	began := time.Now()
	repair := t.fails(n, cniBin+"/portmap")
	set.Scale(1)
	repair()
	t.orphaned(n, Pods{"echoserver-1": before["echoserver-1"]}, began)
	t.LeasesAre(n, "Held", families(t), "echoserver-1")
	t.otherPods("others", n, 3, before)
	set.Scale(2)
	t.Kept(before, set.Ready())
}

func crioReplay(t *Test) {
	n := t.Node(2)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	t.Step("two echoservers run on %s; another network becomes the default, and they are recreated", n.Name)
	t.Networks(n, five(t.NS, "bridge", n))
	between := set.Recreate()
	for name, p := range between {
		if addresses(p) == addresses(before[name]) {
			t.Fatalf("%s is still in the former network", name)
		}
		t.released(n, before[name])
	}
	t.Step("the former network is the default again")
	t.Must(n.SetNetworks(t.Ctx, n.DefaultNetwork()))
	t.Kept(before, set.Recreate())
}

func crioWipe(t *Test) {
	n := t.Node(2)
	t.Step("two echoservers run on %s; CRI-O and the kubelet are stopped; `crio wipe` removes all containers", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	left, err := inspect.Containers(t.Ctx, n.Root(), "")
	t.Must(err)
	t.Cleanup(func() { t.resume(n) })
	t.Must(n.Stop(t.Ctx, cluster.Kubelet))
	t.Must(n.Stop(t.Ctx, cluster.ContainerRuntime))
	t.exec(n, n.CRIO("wipe", "--force")...)
	t.runs(n, cluster.ContainerRuntime)
	t.Must(n.ImportImages(t.Ctx, t.Cluster.Images()))
	t.resume(n)
	t.Kept(before, set.Restarted(before))
	t.Step("the pods have their addresses; the former containers' processes, which have the agent's port, are killed")
	for _, c := range left {
		t.killPID(n, fmt.Sprint(c.PID))
	}
	t.Agent(n)
}

// notReady returns the message of a node's condition Ready, or "" if it is true.
func (t *Test) notReady(n *cluster.Node) string {
	for _, c := range t.object(n.Name).Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return c.Message
		}
	}
	return ""
}

func crioStatus(t *Test) {
	n := t.Node(2)
	network := five(t.NS, "bridge", n)
	network.Version = "1.1.0"
	t.Networks(n, network)
	set := t.Echoserver("echoserver", n, 1)
	before := set.Ready()
	t.Step("an echoserver runs on %s, and the directory of the store becomes read-only", n.Name)
	const dir = "/var/lib/leasehold"
	t.exec(n, "sh", "-c", `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"`, dir)
	repair := t.undo(func() { t.exec(n, "umount", dir) })
	began := time.Now()
	t.Until("the condition of the node names the directory", func() bool {
		return strings.Contains(t.notReady(n), dir)
	})
	t.Step("after %.0f s: %s", time.Since(began).Seconds(), t.notReady(n))
	repair()
	began = time.Now()
	t.Becomes("why the node is not Ready", "", func() any { return t.notReady(n) })
	t.Step("the store is repaired: Ready after %.0f s", time.Since(began).Seconds())
	t.Kept(before, set.Recreate())
}
