package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/sandbox"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestReboot: after a boot no DEL comes for what ran before, and on a node that gets no pods no ADD either, which would do
// the same. The agent alone has to release it all, and must not before it is certain whose boot id it reads.
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
	before := states(node)
	for _, s := range sandboxes {
		s.Remove()
	}
	node.Reboot()

	agent := begin(t, node, views[0])
	agent.says("the host cannot be seen from here, so nothing is done")
	agent.end()
	if now := states(node); now != before {
		t.Errorf("an agent that cannot know which boot this is has made %s of %s", now, before)
	}

	leaveWord(t, node)
	agent = begin(t, node, views[0])
	agent.says(`msg="node surveyed"`) // from here on it is ready
	ready := time.Now()
	eventually(t, func() string {
		if now := states(node); now != "away Held firm, kept Held firm, plain Held" {
			return fmt.Sprintf("it is %s:\n%s", now, agent.out)
		}
		return ""
	})
	t.Logf("released %v after the agent was ready", time.Since(ready))
	agent.end()
	for _, name := range []string{"kept", "plain"} {
		history, err := node.Leasectl("history", "ns/"+name)
		if err != nil || !strings.Contains(history, "Orphaned") || !strings.Contains(history, "the node has booted since") {
			t.Errorf("%s: %v\n%s", name, err, history)
		}
	}
}

// states are the leases of a node by the names of their pods.
func states(node *lab.Node) string {
	var out []string
	for _, name := range []string{"away", "kept", "plain"} {
		for _, l := range node.Leases("--all") {
			if l.Pod != name {
				continue
			}
			state := name + " " + l.State
			if l.Firm {
				state += " firm"
			}
			out = append(out, state)
		}
	}
	return strings.Join(out, ", ")
}

// leaveWord makes it certain that this is the node's boot, as it is in a machine's first process namespace. The plugin says
// so in an ADD, which would release the dead as well.
func leaveWord(t *testing.T, node *lab.Node) {
	t.Helper()
	boot, err := os.ReadFile(filepath.Join(node.Dir, "boot_id"))
	if err != nil {
		t.Fatal(err)
	}
	word := sandbox.New("/proc", "").Spaces(strings.TrimSpace(string(boot)))
	s := store.New(store.Dirs{State: node.StateDir(), Run: node.RunDir()})
	if err := s.Update(context.Background(), func(tx *store.Tx) error { return tx.SetSpaces(word) }); err != nil {
		t.Fatal(err)
	}
}
