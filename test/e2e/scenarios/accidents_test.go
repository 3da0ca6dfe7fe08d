package scenarios

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
)

// accidents kills at random what may die on a node. Whoever lives keeps its address, in its namespace and in the store,
// also a pod of whose network namespace nobody can see the address.
func accidents(w *World) {
	rounds := 6
	if w.Long {
		rounds = 100
	}
	n := w.Node(1)
	w.Step("three echoservers start on %s, three without a window, and one that takes its address out of its namespace", n.Name)
	set := w.Echoserver("echoserver", n, 3)
	plain := w.Echoserver("plain", n, 3, KeptFor(""))
	hidden := w.Echoserver("hidden", n, 1, KeptFor(""))
	kept := merge(set.Ready(), plain.Ready())
	inside := w.Sandbox(n, hidden.Ready()["hidden-0"])
	_, err := n.Machine().Run(w.Ctx, "nsenter", "--net="+w.inNode(n, inside.NetNS), "ip", "addr", "flush", "dev", "eth0")
	w.Must(err)

	seed := uint64(time.Now().UnixNano())
	dice := rand.New(rand.NewPCG(seed, 0))
	w.Step("%d rounds with seed %d", rounds, seed)
	names := slices.Sorted(maps.Keys(kept))
	for range rounds {
		victim := kept[names[dice.IntN(len(names))]]
		kill := killers[dice.IntN(len(killers))]
		kill.do(w, n, victim)
		w.settled(n, kept)
		w.heldBy(n, addresses(hidden.Ready()["hidden-0"]), inside.ID)
		w.Step("%s: all seven have their addresses", strings.ReplaceAll(kill.name, "POD", victim.Name))
	}
	for _, e := range w.History(n) {
		if e.Pod == "hidden-0" && e.Event != "Bound" {
			w.Fatalf("the pod whose address cannot be seen was touched: %+v", e)
		}
	}
}

// killers are the accidents. None of them removes a pod.
var killers = []struct {
	name string
	do   func(w *World, n *bed.Node, pod corev1.Pod)
}{
	{"the container of POD is killed", (*World).killContainers},
	{"the sandbox of POD is killed", func(w *World, n *bed.Node, pod corev1.Pod) {
		w.killPID(n, fmt.Sprint(w.Sandbox(n, pod).PID))
	}},
	{"the shim of POD is killed", func(w *World, n *bed.Node, pod corev1.Pod) { w.killPID(n, w.Sandbox(n, pod).Shim) }},
	{"containerd is killed", func(w *World, n *bed.Node, _ corev1.Pod) {
		w.Must(n.Kill(w.Ctx, bed.Containerd))
		w.Cleanup(func() { w.runs(n, bed.Containerd) })
		w.Must(n.StartContainerd(w.Ctx))
	}},
	{"the kubelet is killed", func(w *World, n *bed.Node, _ corev1.Pod) {
		w.Must(n.Kill(w.Ctx, bed.Kubelet))
		w.Cleanup(func() { w.runs(n, bed.Kubelet) })
		w.Must(n.StartKubelet(w.Ctx))
	}},
	{"the agent is killed", func(w *World, n *bed.Node, _ corev1.Pod) {
		agent := w.Agent(n)
		w.Eventually(6*time.Minute, "the agent runs", func() error { // killed before, it may have to wait as whoever fails often
			if len(w.runningContainers(n, agent)) == 0 {
				return errors.New("it has no container")
			}
			return nil
		})
		w.killContainers(n, agent)
	}},
}

func (w *World) killContainers(n *bed.Node, pod corev1.Pod) {
	for _, c := range w.containers(pod) {
		w.killPID(n, fmt.Sprint(c.PID))
	}
}

// killPID kills a process of a node and waits until it is gone: what still dies would pass for what has been started again.
func (w *World) killPID(n *bed.Node, pid string) {
	_, err := n.Machine().Run(w.Ctx, "kill", "-9", pid)
	w.Must(err)
	w.Eventually(10*time.Second, "process "+pid+" is gone", func() error {
		if _, err := n.Machine().Run(w.Ctx, "kill", "-0", pid); err == nil {
			return errors.New("it is still there")
		}
		return nil
	})
}

// settled waits until each pod runs in a sandbox that the node's store knows, and ends the scenario if one has another
// address than it had.
func (w *World) settled(n *bed.Node, kept Pods) {
	lost := ""
	w.Eventually(90*time.Second, "all pods run again", func() error {
		leases, known := w.Leases(n)
		for name, pod := range kept {
			now := w.now(n, pod)
			if now == nil {
				return errors.New(name + " has no sandbox")
			}
			addrs, err := look.Addresses(now.NetNS)
			if err != nil || len(addrs["eth0"]) == 0 {
				return fmt.Errorf("%s has no address: %w", name, err)
			}
			if has := addrs["eth0"][0].String(); has != pod.Status.PodIP {
				lost = fmt.Sprintf("%s had %s and has %s", name, pod.Status.PodIP, has)
				return nil
			}
			if known && !slices.ContainsFunc(leases, func(l look.Lease) bool {
				return l.Address == pod.Status.PodIP && l.State == "Bound" && l.Container == now.ID
			}) {
				return fmt.Errorf("the store does not have %s for sandbox %.12s of %s", pod.Status.PodIP, now.ID, name)
			}
			if len(w.runningContainers(n, pod)) == 0 {
				return errors.New(name + " has no container")
			}
		}
		return nil
	})
	if lost != "" {
		w.Lostf("%s", lost)
	}
}

// now returns the running sandbox of a pod, nil if there is none.
func (w *World) now(n *bed.Node, pod corev1.Pod) *look.Sandbox {
	for _, s := range w.sandboxes(n) {
		if s.UID == string(pod.UID) && s.Ready {
			return &s
		}
	}
	return nil
}

func (w *World) runningContainers(n *bed.Node, pod corev1.Pod) []look.Container {
	containers, err := look.Containers(w.Ctx, n.Root(), string(pod.UID))
	w.Must(err)
	return containers
}

// inNode turns a path of the host into the node's own.
func (w *World) inNode(n *bed.Node, path string) string { return strings.TrimPrefix(path, n.Root()) }
