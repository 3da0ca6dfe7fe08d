package netns_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

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
	node := lab.NewNode(t)
	bin := filepath.Join(node.Dir, "bin")
	if err := os.Remove(filepath.Join(bin, "leasehold")); err != nil {
		t.Fatal(err)
	}
	install := func(args ...string) error {
		_, err := node.Leasectl(append(args, "--cni-bin-dir="+bin)...)
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
	if err := install("install", "--replace"); err != nil {
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

	if err := install("uninstall", "--cni-conf-dir="+node.Dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, bin); !slices.Equal(got, before) {
		t.Errorf("the plugin directory has %q, want %q", got, before)
	}
	if got, err := os.Readlink(filepath.Join(bin, "host-local")); got != link {
		t.Errorf("host-local is a link to %q (%v), want %q", got, err, link)
	}
	wantRemoved(t, node, net, living)
	if err := install("uninstall", "--cni-conf-dir="+node.Dir); err != nil {
		t.Errorf("uninstalled twice: %v", err)
	}
}

// TestUninstallNamed removes a leasehold that a configuration names, which somebody has edited, and
// which cannot be put back at first.
func TestUninstallNamed(t *testing.T) {
	node := lab.NewNode(t)
	bin, conf := filepath.Join(node.Dir, "bin"), filepath.Join(node.Dir, "10-net.conf")
	uninstall := func(flags ...string) error {
		out, err := node.Leasectl(append([]string{"uninstall", "--cni-bin-dir=" + bin, "--cni-conf-dir=" + node.Dir},
			flags...)...)
		if slices.Contains(flags, "--dry-run") && err == nil && !strings.Contains(out, "can be removed") {
			t.Errorf("--dry-run says %q", out)
		}
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

	const edited = `{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "leasehold"}}`
	unchanged := func(about, content, want string, flags ...string) {
		t.Helper()
		write(conf, content)
		err := uninstall(flags...)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", about, err, want)
		}
		now, err := os.ReadFile(conf)
		if err != nil || string(now) != content || len(node.Leases()) != 3 {
			t.Errorf("%s: %v, the configuration is %s and the leases are %v", about, err, now, node.Leases())
		}
	}
	unclear := strings.Replace(edited, `"ipam":`, `"ipam": null, "IPAM":`, 1)
	unchanged("a configuration that cannot be put back", unclear, conf+": it names leasehold")
	unchanged("the same, when it is only asked", unclear, conf+": it names leasehold", "--dry-run")
	hostLocal, err := os.Readlink(filepath.Join(bin, "host-local"))
	if err = errors.Join(err, os.Remove(filepath.Join(bin, "host-local"))); err != nil {
		t.Fatal(err)
	}
	unchanged("a node without host-local", edited, "there is no host-local in "+bin)
	node.Install("host-local", hostLocal)
	unchanged("a configuration that can be put back, when it is only asked", edited, "", "--dry-run")

	scratch := "/var/lib/cni/flannel/" + replayed.ID
	write(scratch, `{"name": "net", "type": "bridge", "ipam": {"type": "leasehold"}}`)
	if err := uninstall(); err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(edited, "leasehold", "host-local", 1)
	if now, err := os.ReadFile(conf); err != nil || string(now) != want {
		t.Errorf("%s is %s, %v; want %s", conf, now, err, want)
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

// TestUninstallWhilePodsStart removes leasehold while a call of the plugin has not ended, and the
// runtime has not read the configuration again, which names host-local already: its calls of
// leasehold run host-local.
func TestUninstallWhilePodsStart(t *testing.T) {
	node := lab.NewNode(t)
	bin, conf := filepath.Join(node.Dir, "bin"), filepath.Join(node.Dir, "10-net.conf")
	net := bridge(node, "10.1.0.0/24", twenty("leasehold"))
	sandbox, address := start(t, node, net, lab.NewPod("default", "living", ""))
	living := map[string]*lab.Sandbox{address: sandbox}
	// What flannel has stored of a pod keeps the name leasehold until the end of the test.
	scratch := "/var/lib/cni/flannel/" + sandbox.ID
	const text = `{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "leasehold"}}`
	for _, path := range []string{conf, scratch} {
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	call := exec.Command(filepath.Join(bin, "leasehold")) // reads its configuration until it gets the end of it
	call.Env = append(node.Environ(), "CNI_COMMAND=STATUS", "CNI_PATH="+bin)
	input, err := call.StdinPipe()
	if err = errors.Join(err, call.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = call.Process.Kill(), call.Wait() })
	done := make(chan error, 1)
	uninstall := func() {
		_, err := node.Leasectl("uninstall", "--cni-bin-dir="+bin, "--cni-conf-dir="+node.Dir)
		done <- err
	}
	go uninstall()
	for link := ""; link != "host-local"; link, _ = os.Readlink(filepath.Join(bin, "leasehold")) {
		select {
		case err := <-done:
			t.Fatalf("it does not wait for the call, with the calls after it led to host-local: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if now, err := os.ReadFile(conf); err != nil || strings.Contains(string(now), "leasehold") {
		t.Errorf("the configuration is %s, %v", now, err)
	}
	sandbox, address = start(t, node, net, lab.NewPod("default", "next", ""))
	if living[address] != nil {
		t.Errorf("%s was given twice", address)
	}
	living[address] = sandbox
	input.Close()
	_ = call.Wait() // it has no configuration
	err = <-done
	if err != nil && strings.Contains(err.Error(), "has not ended") { // the machine was too busy for its limit
		go uninstall()
		err = <-done
	}
	if err != nil {
		t.Fatal(err)
	}
	theirs := node.Network(net.Name, net.Version,
		lab.With(net.Main, lab.Conf{"ipam": lab.With(node.IPAM("10.1.0.0/24"), twenty("host-local"))}))
	wantRemoved(t, node, theirs, living)
}

// TestUninstallWithAnAgent verifies that nothing is removed under a running agent.
func TestUninstallWithAnAgent(t *testing.T) {
	node := newNode(t)
	net := bridge(node, "10.1.0.0/24", twenty("leasehold"))
	start(t, node, net, lab.NewPod("default", "db-0", "10"))
	_, stop := node.Agent()
	defer stop()
	_, err := node.Leasectl("uninstall", "--cni-bin-dir="+filepath.Join(node.Dir, "bin"), "--cni-conf-dir="+node.Dir)
	if err == nil || !strings.Contains(err.Error(), "still runs; delete its DaemonSet first") {
		t.Errorf("%v", err)
	}
	if len(node.Leases()) != 1 {
		t.Error("the lease is lost")
	}
}
