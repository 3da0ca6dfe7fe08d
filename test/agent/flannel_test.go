package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestFlannelForgets: flannel's DEL removes its scratch file even where the address could not be released, and the next
// one, without that file, does not call the plugin at all (FACTS 6.4, 6.5).
func TestFlannelForgets(t *testing.T) {
	node := lab.NewNode(t)
	net := node.Network("cbr0", "0.3.1", node.Flannel(node.IPAM(), "10.9.0.0/24", ""))
	living := node.Sandbox(lab.NewPod("ns", "living", "10"))
	leaked := node.Sandbox(lab.NewPod("ns", "leaked", "10"))
	for _, sandbox := range []*lab.Sandbox{living, leaked} {
		if _, err := sandbox.Add(net); err != nil {
			t.Fatalf("ADD: %v", err)
		}
	}
	scratch := filepath.Join(node.Dir, "flannel", leaked.ID)
	if !exists(scratch) {
		t.Fatalf("flannel has no %s", scratch)
	}
	node.Install("leasehold", "/bin/false")
	if err := leaked.Del(net); err == nil {
		t.Fatal("a plugin that fails has not failed")
	}
	node.Install("leasehold", lab.Bin("leasehold"))
	// The version here (containernetworking/plugins) keeps its file when the plugin fails; flannel's own since 1.2.0 does not.
	if err := os.Remove(scratch); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := leaked.Del(net); err != nil {
		t.Fatalf("the second DEL: %v", err)
	}
	state := func() string {
		for _, l := range node.Leases() {
			if l.Pod == "leaked" {
				return l.State
			}
		}
		return "none"
	}
	if state() != "Bound" {
		t.Fatalf("the second DEL has reached the plugin: the lease is %s", state())
	}
	agent := begin(t, node, views[0])
	agent.says(`msg="node surveyed"`)
	if state() != "Bound" {
		t.Errorf("its sandbox is there, and the lease is %s", state())
	}
	agent.end()

	leaked.Remove()
	agent = begin(t, node, views[0])
	eventually(t, func() string {
		if s := state(); s != "Held" {
			return "its sandbox is gone, and the lease is " + s
		}
		return ""
	})
	agent.end()
	history, err := node.Leasectl("history", "ns/leaked")
	if err != nil || !strings.Contains(history, "Orphaned") || !strings.Contains(history, "its sandbox is gone") {
		t.Errorf("%v\n%s", err, history)
	}
}

func exists(path string) bool {
	found, err := filepath.Glob(path)
	return err == nil && len(found) == 1
}
