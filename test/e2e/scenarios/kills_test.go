package scenarios

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// kills kills each kind of process of a node, in random order. Running pods keep their addresses,
// in their namespaces and in the store, also one whose address is not on its interface any more.
func kills(t *Test) {
	n := t.Node(1)
	t.Step("three echoservers start on %s, three without a window, and one whose address is removed from its interface",
		n.Name)
	set := t.Echoserver("echoserver", n, 3)
	plain := t.Echoserver("plain", n, 3, KeptFor(""))
	hidden := t.Echoserver("hidden", n, 1, KeptFor(""))
	kept := merge(set.Ready(), plain.Ready())
	inside := t.Sandbox(n, hidden.Ready()["hidden-0"])
	t.exec(n, "nsenter", "--net="+strings.TrimPrefix(inside.NetNS, n.Root()), "ip", "addr", "flush", "dev", "eth0")

	names := slices.Sorted(maps.Keys(kept))
	for _, i := range rand.Perm(len(killActions)) {
		victim, kill := kept[names[rand.IntN(len(names))]], killActions[i]
		kill.do(t, n, victim)
		t.settled(n, kept)
		t.leasedTo(n, addresses(hidden.Ready()["hidden-0"]), inside.ID)
		t.Step("%s: all seven have their addresses", strings.ReplaceAll(kill.name, "POD", victim.Name))
	}
	for _, e := range t.History(n) {
		if e.Name == "hidden-0" && e.Event != "Bound" {
			t.Fatalf("the lease of the pod without an address on its interface changed: %+v", e)
		}
	}
}

// An accident is something that fails on a node, and works again when it returns. It deletes no
// pod.
type accident struct {
	name          string
	do            func(t *Test, n *cluster.Node, pod corev1.Pod)
	restartsAgent bool
}

var killActions = []accident{
	{"the container of POD is killed", (*Test).killContainers, false},
	{"the sandbox of POD is killed",
		func(t *Test, n *cluster.Node, pod corev1.Pod) { t.endSandbox(n, t.Sandbox(n, pod)) }, false},
	{"the shim or conmon of POD is killed", func(t *Test, n *cluster.Node, pod corev1.Pod) {
		// CRI-O goes on with a container whose conmon was killed before. Process 1 has it then.
		if parent := t.containers(pod)[0].Parent; parent != "1" && parent != "" {
			t.killPID(n, parent)
		}
	}, false},
	{"the runtime is killed", func(t *Test, n *cluster.Node, _ corev1.Pod) {
		t.Must(n.Kill(t.Ctx, cluster.ContainerRuntime))
		killed := time.Now()
		t.Cleanup(func() { t.runs(n, cluster.ContainerRuntime) })
		t.Must(n.StartRuntime(t.Ctx, cluster.Runtime{}))
		t.removeForgotten(n, killed)
	}, false},
	{"the kubelet is killed", func(t *Test, n *cluster.Node, _ corev1.Pod) {
		t.Must(n.Kill(t.Ctx, cluster.Kubelet))
		t.Cleanup(func() { t.runs(n, cluster.Kubelet) })
		t.Must(n.StartKubelet(t.Ctx))
		// A kubelet that is starting ends if the runtime is killed. On other nodes systemd starts
		// it again.
		t.Eventually("the kubelet serves its health", func() error {
			_, err := n.Machine().Run(t.Ctx, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/10248")
			return err
		})
	}, false},
	{"the agent is killed", func(t *Test, n *cluster.Node, _ corev1.Pod) {
		agent := t.Agent(n)
		// after earlier kills, the kubelet may delay its restart
		t.Until("the agent runs", func() bool { return len(t.runningContainers(n, agent)) > 0 })
		t.killContainers(n, agent)
	}, true},
}

// removeForgotten removes the network namespaces of sandboxes that CRI-O was making when it was
// killed (docs/facts.md, "CRI-O forgets a sandbox that it has not made").
func (t *Test) removeForgotten(n *cluster.Node, killed time.Time) {
	if !n.IsCRIO() {
		return
	}
	sandboxes := t.sandboxes(n)
	for _, l := range t.Leases(n) {
		isKnown := slices.ContainsFunc(sandboxes, func(s inspect.Sandbox) bool { return s.ID == l.Container })
		if l.State != "Bound" || l.BoundAt == nil || isKnown {
			continue
		}
		if at, err := time.Parse(time.RFC3339, *l.BoundAt); err == nil && at.After(killed) {
			continue
		}
		if _, err := n.Machine().Run(t.Ctx, "ip", "netns", "delete", filepath.Base(l.Netns)); err == nil {
			t.Step("CRI-O has forgotten a sandbox of %s; its namespace is removed", l.Pod)
		}
	}
}

// endSandbox kills the pause process of a sandbox. If there is none, as by default with CRI-O, the
// runtime stops the sandbox.
func (t *Test) endSandbox(n *cluster.Node, s inspect.Sandbox) {
	if s.PID != 0 {
		t.killPID(n, fmt.Sprint(s.PID))
		return
	}
	t.Must(inspect.Stop(t.Ctx, n.Root(), s.ID))
}

// killContainers kills the process of each container of a pod. CRI-O shows a container as running
// without a process if its conmon was killed before.
func (t *Test) killContainers(n *cluster.Node, pod corev1.Pod) {
	for _, c := range t.containers(pod) {
		if c.Parent != "" {
			t.killPID(n, fmt.Sprint(c.PID))
		}
	}
}

// killPID kills a process of a node and waits until it is gone, so that it is not taken for its
// successor.
func (t *Test) killPID(n *cluster.Node, pid string) {
	t.exec(n, "kill", "-9", pid)
	t.Until("process "+pid+" is gone", func() bool {
		_, err := n.Machine().Run(t.Ctx, "kill", "-0", pid)
		return err != nil
	})
}

// settled waits until each pod runs in a sandbox that is in the node's store, and ends the scenario
// if one has another address than before.
func (t *Test) settled(n *cluster.Node, kept Pods) {
	t.Eventually("all pods run again", func() error {
		leases := t.Leases(n)
		for name, pod := range kept {
			now, found := t.now(n, pod)
			if !found {
				return errors.New(name + " has no sandbox")
			}
			addrs, err := inspect.Addresses(now.NetNS)
			if err != nil || len(addrs["eth0"]) == 0 {
				return fmt.Errorf("%s has no address: %w", name, err)
			}
			if has := addrs["eth0"][0].String(); has != pod.Status.PodIP {
				t.Fatalf("%s had %s and has %s", name, pod.Status.PodIP, has)
			}
			if !slices.ContainsFunc(leases, func(l cli.Row) bool {
				return l.Address == pod.Status.PodIP && l.State == "Bound" && l.Container == now.ID
			}) {
				return fmt.Errorf("the store does not have %s for sandbox %.12s of %s", pod.Status.PodIP, now.ID, name)
			}
			if len(t.runningContainers(n, pod)) == 0 {
				return errors.New(name + " has no container")
			}
		}
		return nil
	})
}

func (t *Test) runningContainers(n *cluster.Node, pod corev1.Pod) []inspect.Container {
	containers, err := inspect.Containers(t.Ctx, n.Root(), string(pod.UID))
	t.Must(err)
	return containers
}
