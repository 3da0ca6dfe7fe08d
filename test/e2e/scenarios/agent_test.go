package scenarios

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

func merge(all ...Pods) Pods {
	sum := Pods{}
	for _, pods := range all {
		maps.Copy(sum, pods)
	}
	return sum
}

// forget ends the sandboxes of pods so that no DEL will be sent for them: it removes their
// processes, network namespaces, the runtime's records and, because CRI-O's GC would send DELs for
// them, libcni's results. The kubelet and the runtime stay stopped; resume starts them.
func (t *Test) forget(n *cluster.Node, pods Pods) {
	for _, id := range t.forgetSandboxes(n, pods) {
		// While containerd knew the sandbox, an uninstall would have left a program of the name
		// leasehold for this result.
		t.exec(n, "sh", "-c", `rm -f /var/lib/cni/results/*"$0"*`, id)
	}
}

// forgetSandboxes is forget, but leaves libcni's results. It returns the ids of the sandboxes.
func (t *Test) forgetSandboxes(n *cluster.Node, pods Pods) (ids []string) {
	t.Must(n.Stop(t.Ctx, cluster.Kubelet))
	t.Cleanup(func() { t.runs(n, cluster.Kubelet) })
	var containers []inspect.Container
	var namespaces []string
	for _, pod := range pods {
		sandbox := t.Sandbox(n, pod)
		containers = append(containers, t.containers(pod)...)
		containers = append(containers, inspect.Container{ID: sandbox.ID, PID: sandbox.PID})
		ids, namespaces = append(ids, sandbox.ID), append(namespaces, "/run/netns/"+filepath.Base(sandbox.NetNS))
	}
	t.Cleanup(func() { t.runs(n, cluster.ContainerRuntime) })
	t.Must(n.Forget(t.Ctx, containers))
	for _, path := range namespaces {
		t.exec(n, "sh", "-c", `umount --lazy "$0" && rm "$0"`, path)
	}
	return ids
}

// resume starts what forget has stopped.
func (t *Test) resume(n *cluster.Node) {
	t.runs(n, cluster.ContainerRuntime)
	started := time.Now()
	t.removeForgotten(n, started)
	t.runs(n, cluster.Kubelet)
	t.WaitNode(n, started)
}

// agentSince waits until a node's agent is Ready in a container that was started after a moment.
func (t *Test) agentSince(n *cluster.Node, since time.Time) {
	t.Until("the agent of "+n.Name+" starts again", func() bool {
		return !slices.ContainsFunc(t.Agent(n).Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
			return c.State.Running == nil || c.State.Running.StartedAt.Time.Before(since.Truncate(time.Second))
		})
	})
}

// orphaned waits until a node has noticed that pods have ended without a DEL: none of their
// addresses is bound, and the journal has the reason.
func (t *Test) orphaned(n *cluster.Node, pods Pods, since time.Time) {
	for _, p := range pods {
		t.noLease(n, "bound to "+p.Name, func(l cli.Row) bool { return l.UID == string(p.UID) && l.State == "Bound" })
		t.Step("the address of %s is released; the journal: %s", p.Name, t.journaled(n, p, "Orphaned", since))
	}
}

// journaled waits until the journal of a node has an event of a pod, since a moment, with a reason,
// and returns the reason.
func (t *Test) journaled(n *cluster.Node, pod corev1.Pod, event store.Event, since time.Time) (reason string) {
	t.Eventually("the journal has the event "+string(event)+" of "+pod.Name, func() error {
		history := t.History(n)
		for _, e := range history {
			if e.UID == string(pod.UID) && e.Event == event && !e.Time.Before(since.Truncate(time.Second)) {
				reason = e.Reason
			}
		}
		if reason == "" {
			return fmt.Errorf("it has %+v", history)
		}
		return nil
	})
	return reason
}

func (t *Test) removeSystemPod(name string) {
	pods := t.Client.CoreV1().Pods(cluster.System)
	second := int64(1)
	t.Eventually(name+" goes", func() error {
		err := pods.Delete(t.Ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &second})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
}

// withoutAgentPod checks that the plugin works without the agent.
func withoutAgentPod(t *Test) {
	n := t.Node(2)
	t.Networks(n, five(t.NS, "bridge", n))
	t.WithoutAgent(n)
	t.Step("%s has no agent, and a network with five addresses; two echoservers start there, and two without a window",
		n.Name)
	set := t.Echoserver("echoserver", n, 2)
	plain := t.Echoserver("plain", n, 2, KeptFor(""))
	kept, gone := set.Ready(), plain.Ready()
	t.Kept(kept, set.Recreate())
	t.Step("the echoservers keep their addresses; the two others end without a DEL, and three new pods start")
	t.forget(n, gone)
	plain.Resize(0)
	t.forceDelete(gone)
	t.resume(n)
	t.otherPods("others", n, 3, kept)
	t.Kept(kept, set.Ready())
	t.Step("all five addresses are in use again")
}

// storeLost checks that a removed store is recovered from what the node shows, with its holds.
func storeLost(t *Test) {
	n := t.Node(2)
	// As the last step, because it makes the node accept pools without any record of their use.
	t.Cleanup(func() { t.exec(n, t.Cluster.Leasectl(), "recover", "--accept-loss") })
	t.Step("three echoservers start on %s; scaled to 1", n.Name)
	set := t.Echoserver("echoserver", n, 3)
	kept := set.Ready()
	set.Scale(1)
	t.LeasesAre(n, "Held", 2*families(t), "echoserver-1", "echoserver-2")
	t.Step("the store is removed; four other pods start")
	t.Must(os.Remove(n.Disk("/var/lib/leasehold/leases.db")))
	t.otherPods("others", n, 4, kept)
	t.Step("scaled to 3")
	set.Scale(3)
	t.Kept(kept, set.Ready())
}

// nodeWithoutAgent checks that nothing is shown as certain of a node whose agent is gone, that its
// pods are brought back all the same, and that the agent that comes back says what is true.
func nodeWithoutAgent(t *Test) {
	n := t.Node(2)
	t.retentionIs(n, "True", 5*time.Minute)
	set := t.Echoserver("echoserver", n, 1)
	kept := set.Ready()
	t.published(kept)
	t.Step("the agent of %s is removed", n.Name)
	back := t.WithoutAgent(n)
	t.retentionIs(n, "Unknown AgentMissing", time.Minute)
	t.Step("kubectl get nap:\n%s", t.Kubectl("get", "nap"))
	all := t.clusterDoctor().finds("AgentMissing") // scenarios on other nodes may have removed their agents as well
	i := slices.IndexFunc(all, func(f cli.Finding) bool { return strings.Contains(f.Subject, n.Name) })
	if i < 0 || !strings.Contains(all[i].What, "nobody confirms") {
		t.Fatalf("doctor says %+v", all)
	}
	t.Step("its echoserver is recreated")
	again := set.Recreate()
	t.Kept(kept, again)
	for _, p := range again {
		if got := p.Annotations[pinReason]; !strings.Contains(got, "no agent confirms that since") {
			t.Fatalf("%s is %q", pinReason, got)
		}
	}
	t.Step("somebody puts host-local back for a while, and the echoserver is recreated; the agent is back")
	stock := n.DefaultNetwork()
	stock.IPAM = map[string]any{"type": "host-local"}
	t.Must(n.SetNetworks(t.Ctx, stock))
	lost := set.Recreate()["echoserver-0"]
	t.Must(n.SetNetworks(t.Ctx, n.DefaultNetwork()))
	back()
	t.retentionIs(n, "True", time.Minute)
	t.Step("%s", t.EventOf(lost, "AddressChanged", "instead of "+kept["echoserver-0"].Status.PodIP))
}

// retentionIs waits until retentionActive returns a status for a node.
func (t *Test) retentionIs(n *cluster.Node, status string, limit time.Duration) {
	t.Within(limit, "RetentionActive of "+n.Name+" is "+status, func() error {
		got, err := t.retentionActive(n.Name)
		if err == nil && got != status {
			err = fmt.Errorf("it is %s", got)
		}
		return err
	})
}
