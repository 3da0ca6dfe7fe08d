package scenarios

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
)

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
	uncordon := w.Cordon(n)
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
	uncordon()
	w.strangers("others", n, 4, before)
	w.Kept(before, set.ReadyBut(before))
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

// on sees that a node is on, with all that runs on it.
func (w *World) on(n *bed.Node) {
	if w.Bed.PID(n.Name) == 0 {
		w.Must(n.PowerOn(w.Ctx))
	}
	w.runs(n, bed.Containerd)
	w.runs(n, bed.Kubelet)
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
