package netns_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// installer builds the program that the DaemonSet installs the plugin with.
func installer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "installer")
	cmd := exec.Command("go", "build", "-o", path, "./daemonset/installer")
	cmd.Dir = lab.Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// names returns the names in a directory.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// wantRemoved fails the test if the node has more of leasehold than files of host-local, with one
// address for each of the living pods, or if host-local cannot give out all others.
func wantRemoved(t *testing.T, node *lab.Node, net *lab.Network, living map[string]*lab.Sandbox) {
	t.Helper()
	for _, dir := range []string{node.StateDir(), node.RunDir()} {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	want := []string{"lock"}
	for address, sandbox := range living {
		want = append(want, address)
		content, err := os.ReadFile(filepath.Join(node.NetworksDir(), net.Name, address))
		if err != nil || string(content) != sandbox.ID+"\r\neth0" {
			t.Errorf("host-local's file of %s: %q, %v", address, content, err)
		}
	}
	slices.Sort(want)
	got := names(t, filepath.Join(node.NetworksDir(), net.Name))
	got = slices.DeleteFunc(got, func(name string) bool { return name == "last_reserved_ip.0" }) // if host-local ran
	if !slices.Equal(got, want) {
		t.Errorf("host-local's directory has %q, want %q", got, want)
	}
	given := map[string]bool{}
	for range 20 - len(living) {
		_, address := start(t, node, net, lab.NewPod("default", "next", ""))
		if given[address] || living[address] != nil {
			t.Errorf("%s was given twice", address)
		}
		given[address] = true
	}
	if addrs, err := node.Sandbox(lab.NewPod("default", "surplus", "")).Add(net); err == nil {
		t.Errorf("a pool of 20 has a 21st address: %s", addrs)
	}
}

// twenty returns ipam fields of host-local for a pool of twenty addresses.
func twenty(kind string) lab.Conf {
	return lab.Conf{"type": kind, "ranges": [][]lab.Conf{{{
		"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.29"}}}}
}

// TestUninstallReplaced puts leasehold in host-local's place and removes it again, while pods of
// before and of meanwhile live on.
func TestUninstallReplaced(t *testing.T) {
	program, node := installer(t), lab.NewNode(t)
	bin := filepath.Join(node.Dir, "bin")
	if err := os.Remove(filepath.Join(bin, "leasehold")); err != nil {
		t.Fatal(err)
	}
	install := func(args ...string) error {
		_, err := node.Command(program, append(args, "--to="+bin, "--cni-conf-dir="+node.Dir)...)
		return err
	}
	net := bridge(node, "10.1.0.0/24", twenty("host-local"))
	before := names(t, bin)
	link, err := os.Readlink(filepath.Join(bin, "host-local"))
	if err != nil {
		t.Fatal(err)
	}
	living := map[string]*lab.Sandbox{}
	run := func(pod lab.Pod) *lab.Sandbox {
		t.Helper()
		sandbox, address := start(t, node, net, pod)
		living[address] = sandbox
		return sandbox
	}
	end := func(sandbox *lab.Sandbox, del bool) {
		t.Helper()
		for address, s := range living {
			if s == sandbox {
				delete(living, address)
			}
		}
		if !del {
			sandbox.Remove()
			return
		}
		stop(t, sandbox, net)
	}
	run(lab.NewPod("default", "old", ""))
	old := run(lab.NewPod("default", "old-ends", ""))
	if err := install("replace", "--from="+lab.Bin("leasehold")); err != nil {
		t.Fatal(err)
	}
	db := lab.NewPod("default", "db-0", "forever")
	first, original := start(t, node, net, db)
	stop(t, first, net)
	second, address := start(t, node, net, recreated(db))
	if address != original {
		t.Errorf("with leasehold, %s became %s", original, address)
	}
	living[address] = second
	end(run(lab.NewPod("default", "held", "forever")), true)
	end(run(lab.NewPod("default", "cools-down", "")), true)
	end(run(lab.NewPod("default", "lost-del", "forever")), false)
	run(lab.NewPod("default", "new", ""))
	end(old, true)

	if err := install("uninstall"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, bin); !slices.Equal(got, before) {
		t.Errorf("the plugin directory has %q, want %q", got, before)
	}
	if got, err := os.Readlink(filepath.Join(bin, "host-local")); got != link {
		t.Errorf("host-local is a link to %q (%v), want %q", got, err, link)
	}
	wantRemoved(t, node, net, living)
	if err := install("uninstall"); err != nil {
		t.Errorf("uninstalled twice: %v", err)
	}
}

// TestUninstallNamed removes a leasehold that a configuration names.
func TestUninstallNamed(t *testing.T) {
	program, node := installer(t), lab.NewNode(t)
	bin, conf := filepath.Join(node.Dir, "bin"), filepath.Join(node.Dir, "10-net.conf")
	uninstall := func() error {
		_, err := node.Command(program, "uninstall", "--to="+bin, "--cni-conf-dir="+node.Dir)
		return err
	}
	write := func(path, text string) {
		t.Helper()
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	ours := bridge(node, "10.1.0.0/24", twenty("leasehold"))
	theirs := node.Network(ours.Name, ours.Version,
		lab.With(ours.Main, lab.Conf{"ipam": lab.With(node.IPAM("10.1.0.0/24"), twenty("host-local"))}))
	held, _ := start(t, node, ours, lab.NewPod("default", "held", "forever"))
	stop(t, held, ours)
	living := map[string]*lab.Sandbox{}
	replayed, freed := start(t, node, ours, lab.NewPod("default", "replayed", ""))
	sandbox, address := start(t, node, ours, lab.NewPod("default", "living", ""))
	living[address] = sandbox

	write(conf, `{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "leasehold"}}`)
	if err := uninstall(); err == nil || !strings.Contains(err.Error(), conf+" still names leasehold") {
		t.Fatalf("while a configuration names leasehold: %v", err)
	}
	if len(node.Leases()) != 3 {
		t.Errorf("leases are lost: %v", node.Leases())
	}
	write(conf, `{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "host-local"}}`)

	scratch := "/var/lib/cni/flannel/" + replayed.ID
	write(scratch, `{"name": "net", "type": "bridge", "ipam": {"type": "leasehold"}}`)
	if err := uninstall(); err != nil {
		t.Fatal(err)
	}
	stop(t, replayed, ours) // as flannel does it: with the configuration of the ADD
	if _, err := os.Lstat(filepath.Join(node.NetworksDir(), "net", freed)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the DEL of a pod that was started before has not freed %s: %v", freed, err)
	}
	if err := os.Remove(scratch); err != nil {
		t.Fatal(err)
	}
	if err := uninstall(); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(names(t, bin), "leasehold") {
		t.Error("the binary is left")
	}
	wantRemoved(t, node, theirs, living)
}

// TestUninstallWithAnAgent verifies that nothing is removed under a running agent.
func TestUninstallWithAnAgent(t *testing.T) {
	program, node := installer(t), newNode(t)
	net := bridge(node, "10.1.0.0/24", twenty("leasehold"))
	start(t, node, net, lab.NewPod("default", "db-0", "10"))
	stop := node.Agent()
	defer stop()
	_, err := node.Command(program, "uninstall", "--to="+filepath.Join(node.Dir, "bin"), "--cni-conf-dir="+node.Dir)
	if err == nil || !strings.Contains(err.Error(), "still runs; delete its DaemonSet first") {
		t.Errorf("%v", err)
	}
	if len(node.Leases()) != 1 {
		t.Error("the lease is lost")
	}
}
