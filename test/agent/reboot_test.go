package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestReboot verifies that the agent releases the leases of former sandboxes after a reboot, when
// the runtime calls no DEL and perhaps no ADD, but not before it is certain of the node's boot id.
func TestReboot(t *testing.T) {
	node := lab.NewNode(t)
	net := node.Network("net", "1.0.0", node.Bridge(node.IPAM("10.3.0.0/24")))
	sandboxes := map[string]*lab.Sandbox{}
	for name, window := range map[string]string{"kept": "10", "plain": "", "away": "10"} {
		sandboxes[name] = node.Sandbox(lab.NewPod("ns", name, window))
		if _, err := sandboxes[name].Add(net); err != nil {
			t.Fatalf("ADD: %v", err)
		}
	}
	if err := sandboxes["away"].Del(net); err != nil {
		t.Fatalf("DEL: %v", err)
	}
	for _, s := range sandboxes {
		s.Remove()
	}
	node.Reboot()
	before := states(node) // the DEL was only queued, and is lost

	agent := begin(t, node, views[0])
	agent.says("the host cannot be seen from here, so nothing is done")
	agent.end()
	if now := states(node); now != before {
		t.Errorf("an agent that cannot know the boot changed the leases to %s, want %s", now, before)
	}

	recordSpaces(t, node)
	agent = begin(t, node, views[0])
	agent.says(`msg="node surveyed"`) // it is ready now
	ready := time.Now()
	background.Eventually(t, func() string {
		if now := states(node); now != "away Held hold, kept Held hold, plain Held" {
			return fmt.Sprintf("leases: %s\n%s", now, agent.out)
		}
		return ""
	})
	t.Logf("released %v after the agent was ready", time.Since(ready))
	agent.end()
	for _, name := range []string{"kept", "plain", "away"} {
		history, err := node.Leasectl("history", "ns/"+name)
		if err != nil || !strings.Contains(history, "Orphaned") ||
			!strings.Contains(history, "the node has booted since") {
			t.Errorf("%s: %v\n%s", name, err, history)
		}
	}
}

// states returns the states of a node's leases by pod.
func states(node *lab.Node) string {
	var out []string
	for _, name := range []string{"away", "kept", "plain"} {
		for _, l := range node.Leases("--all") {
			if l.Pod != name {
				continue
			}
			state := name + " " + l.State
			if l.IsHold {
				state += " hold"
			}
			out = append(out, state)
		}
	}
	return strings.Join(out, ", ")
}

// recordSpaces records the namespaces of this process in the store, as ADD does, so that the agent
// is certain of the boot. An ADD would also release the dead holders.
func recordSpaces(t *testing.T, node *lab.Node) {
	t.Helper()
	boot, err := os.ReadFile(filepath.Join(node.Dir, "boot_id"))
	must.Succeed(t, err)
	spaces := host.New("/proc", "").NamespaceIDs(strings.TrimSpace(string(boot)))
	s := store.New(store.Dirs{State: node.StateDir(), Run: node.RunDir()})
	record := func(tx *store.Tx) error { return tx.SetNamespaceIDs(spaces) }
	must.Succeed(t, s.Update(context.Background(), record))
}
