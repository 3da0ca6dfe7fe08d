package netns_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// earlier is the version with which this one has to work in turn on one node. It is the last tag,
// as soon as there is one; this commit does not record the ranges of pools.
const earlier = "71da4a9c6343"

// withoutNames is the last commit that does not know reservation names, and so no format 2.
const withoutNames = "6962880e7396"

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

// TestVersionsInTurn verifies that two versions of the plugin serve one node in turn, in both
// orders, as during an upgrade and after going back: each continues with what the other has
// written.
func TestVersionsInTurn(t *testing.T) {
	old := buildEarlier(t, earlier)
	programs := map[string]string{"earlier": filepath.Join(old, "leasehold"), "this": lab.Bin("leasehold")}
	for _, order := range [][]string{{"earlier", "this", "earlier", "this"}, {"this", "earlier", "this", "earlier"}} {
		t.Run(order[0]+" version first", func(t *testing.T) {
			node := newNode(t)
			net := bridge(node, "10.1.0.0/24", nil)
			node.Install("leasehold", programs[order[0]])
			db := lab.NewPod("default", "db-0", "10")
			_, living := start(t, node, net, lab.NewPod("default", "living", "10"))
			sandbox, original := start(t, node, net, db)
			for _, version := range order[1:] {
				node.Install("leasehold", programs[version])
				stop(t, sandbox, net) // what the version before has started
				if _, other := start(t, node, net, lab.NewPod("default", "other-"+version, "")); other == original ||
					other == living {
					t.Errorf("%s version gave %s to another pod", version, other)
				}
				db = recreated(db)
				var address string
				if sandbox, address = start(t, node, net, db); address != original {
					t.Errorf("%s version: db-0 came back with %s, want %s", version, address, original)
				}
				if err := sandbox.Check(net); err != nil {
					t.Errorf("%s version: CHECK: %v", version, err)
				}
				for _, leasectl := range []string{lab.Bin("leasectl"), filepath.Join(old, "leasectl")} {
					if out, err := node.Command(leasectl, "check"); err != nil {
						t.Errorf("%s version: %s check: %v\n%s", version, leasectl, err, out)
					}
				}
			}
		})
	}
}

// TestReservationNamesRaiseTheFormat verifies that a version without reservation names serves a
// node in turn with this one until there is a name, that it then refuses the store without a
// change, and that the way back assigns no address twice.
func TestReservationNamesRaiseTheFormat(t *testing.T) {
	old := buildEarlier(t, withoutNames)
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", nil)
	node.Install("leasehold", filepath.Join(old, "leasehold"))
	db := lab.NewPod("default", "db-0", "10")
	sandbox, original := start(t, node, net, db)
	stop(t, sandbox, net)
	node.Install("leasehold", lab.Bin("leasehold"))
	if sandbox, address := start(t, node, net, recreated(db)); address != original {
		t.Errorf("db-0 came back with %s, want %s", address, original)
	} else {
		stop(t, sandbox, net)
	}
	for _, leasectl := range []string{lab.Bin("leasectl"), filepath.Join(old, "leasectl")} {
		if out, err := node.Command(leasectl, "check"); err != nil {
			t.Errorf("without names: %s check: %v\n%s", leasectl, err, out)
		}
	}

	named := func(name string) lab.Pod {
		pod := lab.NewPod("default", name, "10")
		pod.Annotations["leasehold.dev/reserve-as"] = "registry"
		return pod
	}
	first, kept := start(t, node, net, named("registry-1"))
	second, other := start(t, node, net, named("registry-2"))
	stop(t, first, net)
	if _, err := node.Command(lab.Bin("leasectl"), "gc"); err != nil { // replays the DEL
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(node.StateDir(), "leases.db"))
	if err != nil {
		t.Fatal(err)
	}
	node.Install("leasehold", filepath.Join(old, "leasehold"))
	_, err = node.Sandbox(named("registry-3")).Add(net)
	wantCode(t, err, 11, "was written by a newer version", "format 2", "supports up to 1")
	after, err := os.ReadFile(filepath.Join(node.StateDir(), "leases.db"))
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the version without names has changed the store: %v", err)
	}
	node.Install("leasehold", lab.Bin("leasehold"))
	fourth, address := start(t, node, net, named("registry-4"))
	if address != kept {
		t.Errorf("the name came back with %s, want %s", address, kept)
	}
	stop(t, fourth, net)

	node.Install("leasehold", filepath.Join(old, "leasehold"))
	if err := os.Rename(node.StateDir(), node.StateDir()+".newer"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"registry-5", "other-0", "other-1"} {
		if _, address := start(t, node, net, lab.NewPod("default", name, "")); address == kept || address == other ||
			address == original {
			t.Errorf("%s was given to another pod", address)
		}
	}
	stop(t, second, net)
	if _, address := start(t, node, net, recreated(db)); address != original {
		t.Errorf("after the way back db-0 came with %s, want %s", address, original)
	}
}
