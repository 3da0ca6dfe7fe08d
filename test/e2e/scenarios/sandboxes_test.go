package scenarios

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
)

func sandboxKilled(w *World) {
	n := w.Node(1)
	w.Step("an echoserver starts on %s", n.Name)
	set := w.Echoserver("echoserver", n, 1)
	w.killSandboxes(set)
	w.Step("the same with a pod without a window")
	w.killSandboxes(w.Echoserver("plain", n, 1, KeptFor("")))
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
	resume = untilDone(func() { shim("CONT") })
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
