package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// nodeServices deletes a pod while a service of its node, or its network, is away.
func nodeServices(t *Test) {
	n := t.Node(1)
	t.Step("two echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	for _, away := range []struct {
		what string
		stop func() error
		back func()
	}{
		{"the kubelet is stopped", func() error { return n.Stop(t.Ctx, cluster.Kubelet) },
			func() { t.runs(n, cluster.Kubelet) }},
		{"the runtime is killed", func() error { return n.Kill(t.Ctx, cluster.ContainerRuntime) },
			func() { t.runs(n, cluster.ContainerRuntime) }},
		{"the node has no network", n.CutOff, func() { t.Must(n.Reconnect()) }},
	} {
		before := set.Ready()
		other := t.Sandbox(n, before["echoserver-1"])
		deleted := Pods{"echoserver-0": before["echoserver-0"]}
		t.Step("%s, echoserver-0 is deleted", away.what)
		back := t.undo(away.back)
		t.Must(away.stop())
		set.Delete(deleted)
		t.waitNotReady(n)
		if addrs, err := inspect.Addresses(other.NetNS); err != nil || len(addrs["eth0"]) == 0 {
			t.Fatalf("echoserver-1 has lost its network: %v %v", addrs, err)
		}
		back()
		t.WaitNode(n, time.Now())
		t.Kept(before, set.ReadyBut(deleted))
		if now := t.Sandbox(n, before["echoserver-1"]); now.ID != other.ID {
			t.Fatalf("echoserver-1 was not deleted, but is in a new sandbox")
		}
	}
}

// runs starts a node's service if it does not run.
func (t *Test) runs(n *cluster.Node, service string) {
	if n.Machine().Services()[service] != 0 {
		return
	}
	if service == cluster.ContainerRuntime {
		t.Must(n.StartRuntime(t.Ctx, cluster.Runtime{}))
	} else {
		t.Must(n.StartKubelet(t.Ctx))
	}
}

// waitNotReady waits until the control plane notices that a node is down, and no pod is scheduled
// to it any more: the taint comes after the condition.
func (t *Test) waitNotReady(n *cluster.Node) {
	t.Until("the node is not Ready, and has a taint", func() bool {
		node := t.object(n.Name)
		return !cluster.NodeReady(node) && slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return taint.Effect == corev1.TaintEffectNoSchedule
		})
	})
}

func reboot(t *Test) {
	n := t.Node(2)
	t.Step("three echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 3)
	before := set.Ready()
	bootID := t.bootID(n)
	t.Step("the node loses power, two pods are force-deleted and replaced, the node boots")
	t.powerOff(n)
	forced := Pods{"echoserver-0": before["echoserver-0"], "echoserver-1": before["echoserver-1"]}
	t.forceDelete(forced)
	t.Eventually("new pods", func() error {
		pods := set.Pods()
		for name, old := range forced {
			if p, found := pods[name]; !found || p.UID == old.UID {
				return errors.New("no new " + name)
			}
		}
		return nil
	})
	booted := time.Now()
	t.Must(n.PowerOn(t.Ctx))
	t.agentSince(n, booted)
	t.InSync(n, "the agent is ready")
	t.WaitNode(n, booted)
	t.Kept(before, set.ReadyBut(forced))
	t.Kept(before, set.Restarted(Pods{"echoserver-2": before["echoserver-2"]}))
	t.InSync(n, "all run")
	if t.bootID(n) == bootID {
		t.Fatalf("the node reports its earlier boot id")
	}
	t.Step("waiting until the kubelet has removed the old sandboxes")
	t.Until("the old sandboxes go", func() bool {
		return !slices.ContainsFunc(t.sandboxes(n), func(s inspect.Sandbox) bool {
			return s.UID == string(forced[s.Pod].UID)
		})
	})
	t.Kept(before, set.Ready())
	t.LeasesAre(n, "Bound", 3*families(t))
}

func rebootAPIDown(t *Test) {
	n := t.Node(2)
	t.Step("two echoservers start on %s, and two without a window", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	plain := t.Echoserver("plain", n, 2, KeptFor(""))
	kept, others := set.Ready(), plain.Ready()
	t.Step("the node loses power, plain-1 is deleted; the node boots while the API server is off")
	t.powerOff(n)
	plain.Resize(1)
	t.forceDelete(Pods{"plain-1": others["plain-1"]})
	delete(others, "plain-1")
	t.bootWithoutAPI(n)
	t.Kept(kept, set.Restarted(kept))
	t.Kept(others, plain.Restarted(others))
	t.Step("every pod has its address; waiting until the address of plain-1 is not held any more")
	t.noLeaseOf("plain-1", n)
	t.LeasesAre(n, "Bound", 3*families(t))
}

// noLeaseOf waits until a node has no lease of a pod.
func (t *Test) noLeaseOf(pod string, n *cluster.Node) {
	t.noLease(n, "of "+pod, func(l cli.Row) bool { return l.Pod == pod })
}

// noLease waits until a node has no lease of the scenario for which is returns true.
func (t *Test) noLease(n *cluster.Node, about string, is func(cli.Row) bool) {
	t.Eventually(n.Name+" has no lease "+about, func() error {
		leases := t.Leases(n)
		if i := slices.IndexFunc(leases, is); i >= 0 {
			return fmt.Errorf("it has %+v", leases[i])
		}
		return nil
	})
}

// bootWithoutAPI boots nodes while the API server is off, and waits until they are Ready.
func (t *Test) bootWithoutAPI(nodes ...*cluster.Node) {
	t.freshWatches()
	back := t.WithoutControl(cluster.APIServer)
	for _, n := range nodes {
		t.Must(n.PowerOn(t.Ctx))
	}
	t.Sleep(15 * time.Second)
	back()
	for _, n := range nodes {
		t.WaitNode(n, time.Now())
	}
}

func (t *Test) bootID(n *cluster.Node) string { return t.object(n.Name).Status.NodeInfo.BootID }

// withoutKubelet stops the kubelet of a node until back is called, or the scenario ends.
func (t *Test) withoutKubelet(n *cluster.Node) (back func()) {
	t.Must(n.Stop(t.Ctx, cluster.Kubelet))
	return t.undo(func() {
		t.runs(n, cluster.Kubelet)
		t.WaitNode(n, time.Now())
	})
}

// powerOff powers a node off until the scenario powers it on or ends.
func (t *Test) powerOff(n *cluster.Node) {
	t.Must(n.PowerOff(t.Ctx))
	t.Cleanup(func() { t.powerOn(n) })
}

// powerOn makes sure that a node and its services run.
func (t *Test) powerOn(n *cluster.Node) {
	if t.Cluster.PID(n.Name) == 0 {
		t.Must(n.PowerOn(t.Ctx))
	}
	t.runs(n, cluster.ContainerRuntime)
	t.runs(n, cluster.Kubelet)
	t.WaitNode(n, time.Now())
}
