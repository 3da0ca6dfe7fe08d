package netns_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// earlier is a version whose stores have format 1, or 2 with a reservation name. Once a tag has the
// present format, a test has to verify that its version and this one serve a node in turn.
const earlier = "1c886be"

// buildEarlier builds the plugin and leasectl of the version of a commit, and returns their
// directory.
func buildEarlier(t *testing.T, commit string) string {
	t.Helper()
	source, programs := t.TempDir(), t.TempDir()
	script := `git -C "$0" archive "$1" | tar -C "$2" -x
cd "$2" && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$3/" ./plugins/ipam/leasehold ./cmd/leasectl`
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", script, lab.Root(), commit, source, programs)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return programs
}

// TestEarlierFormat verifies that this version takes over what an earlier one has written, a queued
// DEL too, that the earlier one then refuses the store without a change, and that the way back
// assigns no address twice.
func TestEarlierFormat(t *testing.T) {
	old := buildEarlier(t, earlier)
	install := func(node *lab.Node, programs string) { node.Install("leasehold", filepath.Join(programs, "leasehold")) }
	this := filepath.Dir(lab.Bin("leasehold"))
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	named := func(name string) lab.Pod {
		pod := lab.NewPod("default", name, "10")
		pod.Annotations["leasehold.dev/reserve-as"] = "registry"
		return pod
	}
	install(node, old)
	db := lab.NewPod("default", "db-0", "10")
	_, living := start(t, node, net, lab.NewPod("default", "living", "10"))
	first, kept := start(t, node, net, named("registry-1"))
	second, other := start(t, node, net, named("registry-2"))
	sandbox, original := start(t, node, net, db)
	stop(t, sandbox, net)
	stop(t, first, net)

	install(node, this)
	if out, err := node.Command(lab.Bin("leasectl"), "list"); err != nil { // does not take it over
		t.Errorf("list: %v\n%s", err, out)
	}
	if out, err := node.Command(filepath.Join(old, "leasectl"), "check"); err != nil {
		t.Errorf("the earlier leasectl after a list: %v\n%s", err, out)
	}
	returned, address := start(t, node, net, recreated(db))
	if address != original {
		t.Errorf("db-0 came back with %s, want %s", address, original)
	}
	third, address := start(t, node, net, named("registry-3"))
	if address != kept {
		t.Errorf("the name came back with %s, want %s", address, kept)
	}
	if err := returned.Check(net); err != nil {
		t.Error(err)
	}
	if out, err := node.Command(lab.Bin("leasectl"), "check"); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
	stop(t, returned, net)
	stop(t, third, net)
	if _, err := node.Command(lab.Bin("leasectl"), "gc"); err != nil { // replays the DELs
		t.Fatal(err)
	}

	before, err := os.ReadFile(filepath.Join(node.StateDir(), "leases.db"))
	if err != nil {
		t.Fatal(err)
	}
	install(node, old)
	_, err = node.Sandbox(named("registry-4")).Add(net)
	wantCode(t, err, 11, "was written by a newer version", "format 3", "supports up to 2")
	after, err := os.ReadFile(filepath.Join(node.StateDir(), "leases.db"))
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the earlier version has changed the store: %v", err)
	}
	install(node, this)
	fifth, address := start(t, node, net, named("registry-5"))
	if address != kept {
		t.Errorf("the name came back with %s, want %s", address, kept)
	}
	stop(t, fifth, net)

	install(node, old)
	if err := os.Rename(node.StateDir(), node.StateDir()+".newer"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"x-0", "x-1", "x-2"} {
		if _, address := start(t, node, net, lab.NewPod("default", name, "")); address == kept || address == other ||
			address == original || address == living {
			t.Errorf("%s was given to another pod", address)
		}
	}
	stop(t, second, net)
	if _, address := start(t, node, net, recreated(db)); address != original {
		t.Errorf("after the way back db-0 came with %s, want %s", address, original)
	}
}
