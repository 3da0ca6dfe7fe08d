package scenarios

import (
	"errors"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

func disconnected(t *Test) {
	n := t.Node(2)
	t.replaceOneOfTwo(n, func(remove func(), _ inspect.Sandbox) {
		t.Step("%s loses its network, echoserver-0 is deleted", n.Name)
		t.Must(n.CutOff())
		t.Cleanup(func() { t.Must(n.Reconnect()) })
		remove()
		t.waitNotReady(n)
		t.Step("the node is connected again")
		t.Must(n.Reconnect())
		t.WaitNode(n, time.Now())
	})
}

// waitNotReady waits until the control plane notices that a node is down.
func (t *Test) waitNotReady(n *cluster.Node) {
	t.Eventually("the node is not Ready", func() error {
		node, err := t.Client.CoreV1().Nodes().Get(t.Ctx, n.Name, metav1.GetOptions{})
		t.Must(err)
		if cluster.NodeReady(node) {
			return errors.New("it is still Ready")
		}
		return nil
	})
}

func cordon(t *Test) {
	n := t.Node(1)
	t.Step("an echoserver starts on %s, which is then cordoned", n.Name)
	set := t.Echoserver("echoserver", n, 1)
	before := set.Ready()
	uncordon := t.Cordon(n)
	set.Delete(before)
	t.Eventually("the new pod waits", func() error {
		pod, ok := set.Pods()["echoserver-0"]
		if !ok || pod.UID == before["echoserver-0"].UID {
			return errors.New("there is none")
		}
		if pod.Spec.NodeName != "" {
			t.Fatalf("it was sent to %s", pod.Spec.NodeName)
		}
		return nil
	})
	t.Step("the new pod waits; the node is uncordoned and four other pods start")
	t.LeasesAre(n, "Held", families(t))
	uncordon()
	t.otherPods("others", n, 4, before)
	t.Kept(before, set.ReadyBut(before))
}

func reboot(t *Test) {
	n := t.Node(2)
	t.Step("three echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 3)
	before := set.Ready()
	bootID := t.bootID(n)
	t.Step("the node loses power, a pod is force-deleted, the node boots")
	t.powerOff(n)
	forced := Pods{"echoserver-0": before["echoserver-0"]}
	set.ForceDelete(forced)
	booted := time.Now()
	t.Must(n.PowerOn(t.Ctx))
	t.agentSince(n, booted)
	t.InSync(n, "the agent is ready")
	t.WaitNode(n, booted)
	t.Kept(before, set.ReadyBut(forced))
	restarted := maps.Clone(before)
	delete(restarted, "echoserver-0")
	t.Kept(restarted, set.Restarted(restarted))
	t.InSync(n, "all run")
	if t.bootID(n) == bootID {
		t.Fatalf("the node reports its earlier boot id")
	}
	t.LeasesAre(n, "Bound", 3*families(t))
}

func rebootAPIDown(t *Test) {
	n := t.Node(2)
	t.Step("two echoservers start on %s, and two without a window", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	plain := t.Echoserver("plain", n, 2, KeptFor(""))
	before := merge(set.Ready(), plain.Ready())
	t.Step("the node loses power, plain-1 is deleted; the node boots while the API server is off")
	t.powerOff(n)
	plain.Resize(1)
	t.forceDelete(Pods{"plain-1": before["plain-1"]})
	delete(before, "plain-1")
	t.bootWithoutAPI(n)
	after := merge(set.Restarted(set.of(before)), plain.Restarted(plain.of(before)))
	t.Kept(before, after)
	t.Step("every pod has its address; waiting until the address of plain-1 is not held any more")
	t.Eventually("the hold ends", func() error {
		leases := t.Leases(n)
		for _, l := range leases {
			if l.Pod == "plain-1" {
				return fmt.Errorf("%s is %s", l.Address, l.State)
			}
		}
		return nil
	})
	t.LeasesAre(n, "Bound", 3*families(t))
}

// bootWithoutAPI boots nodes while the API server is off, and waits until they are Ready.
func (t *Test) bootWithoutAPI(nodes ...*cluster.Node) {
	t.freshAgents()
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

func (t *Test) bootID(n *cluster.Node) string {
	node, err := t.Client.CoreV1().Nodes().Get(t.Ctx, n.Name, metav1.GetOptions{})
	t.Must(err)
	return node.Status.NodeInfo.BootID
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
	t.runs(n, cluster.Containerd)
	t.runs(n, cluster.Kubelet)
	t.WaitNode(n, time.Now())
}

func rebootReplaced(t *Test) {
	n := t.Node(2)
	t.Step("two echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	t.Step("the node loses power, the pods are force-deleted and replaced")
	t.powerOff(n)
	set.ForceDelete(before)
	t.Eventually("new pods", func() error {
		pods := set.Pods()
		for name, old := range before {
			if p, ok := pods[name]; !ok || p.UID == old.UID {
				return fmt.Errorf("no new %s", name)
			}
		}
		return nil
	})
	booted := time.Now()
	t.Must(n.PowerOn(t.Ctx))
	t.WaitNode(n, booted)
	after := set.ReadyBut(before)
	t.Kept(before, after)
	t.Step("the new pods run; waiting until the kubelet has removed the old sandboxes")
	t.Eventually("the old sandboxes go", func() error {
		for _, s := range t.sandboxes(n) {
			if s.UID == string(before[s.Pod].UID) {
				return fmt.Errorf("%.12s of %s is there", s.ID, s.Pod)
			}
		}
		return nil
	})
	t.Kept(before, set.Ready())
	t.LeasesAre(n, "Bound", 2*families(t))
}
