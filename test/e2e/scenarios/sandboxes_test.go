package scenarios

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

func forceDelete(t *Test) {
	n := t.Node(1)
	t.Step("an echoserver starts on %s", n.Name)
	set := t.Echoserver("echoserver", n, 1, Stubborn(20*time.Second))
	before := set.Ready()
	old := t.Sandbox(n, before["echoserver-0"])
	t.Step("its sandbox %.12s hangs and cannot be stopped; the pod is force-deleted", old.ID)
	resume := t.hang(n, old)
	set.ForceDelete(before)
	var refused []string
	t.Eventually("the new pod is refused, or gets an address", func() error {
		pod, ok := set.Pods()["echoserver-0"]
		if !ok || pod.UID == before["echoserver-0"].UID {
			return errors.New("there is no new pod")
		}
		refused = t.Events(string(pod.UID), "FailedCreatePodSandBox")
		if len(refused) == 0 && !ready(pod) {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	addrs, err := inspect.Addresses(old.NetNS)
	t.Must(err)
	had := strings.ReplaceAll(addresses(before["echoserver-0"]), ",", " ")
	if had != strings.Trim(fmt.Sprint(addrs["eth0"]), "[]") {
		t.Fatalf("the old pod has %v, not its address: the scenario proves nothing", addrs)
	}
	if len(refused) > 0 {
		t.Step("the new pod is refused: %s", refused[0])
		if !strings.Contains(refused[0], old.ID[:12]) {
			t.Fatalf("the message does not name the old sandbox %s", old.ID)
		}
		t.Step("the old sandbox can be stopped again")
	}
	resume()
	// The watch over all scenarios checks that the address was not in two pods at once.
	t.Kept(before, set.ReadyBut(before))
}

// hang stops the shim of a sandbox, the parent of the pause process, until resume is called. The
// sandbox cannot be stopped meanwhile: every request to kill waits.
func (t *Test) hang(n *cluster.Node, s inspect.Sandbox) (resume func()) {
	shim := func(signal string) {
		_, err := n.Machine().Run(t.Ctx, "sh", "-c", `kill -`+signal+` "$0"`, s.Shim)
		t.Must(err)
	}
	shim("STOP")
	resume = untilDone(func() { shim("CONT") })
	t.Cleanup(resume)
	return resume
}
