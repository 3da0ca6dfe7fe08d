package netns_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// cniDir makes /var/lib/cni, where flannel and libcni store configurations, a directory of the
// node.
func cniDir(t *testing.T, node *lab.Node) {
	t.Helper()
	const dir = "/var/lib/cni" // in a file system of the tests, with what former ones have left
	must.Succeed(t, os.RemoveAll(dir))
	must.Succeed(t, os.Symlink(filepath.Join(node.Dir, "cache"), dir))
	t.Cleanup(func() { os.Remove(dir) })
}

// uninstall removes leasehold from a node, and returns what that prints.
func uninstall(t *testing.T, node *lab.Node, path string) string {
	t.Helper()
	out, err := node.Leasectl("uninstall", "--cni-bin-dir="+filepath.Join(node.Dir, "bin"),
		"--cni-conf-dir="+filepath.Dir(path), "--yes")
	must.Succeed(t, err, "leasectl uninstall", out)
	return out
}

// addressFiles returns the names of host-local's address files of the network net.
func addressFiles(t *testing.T, node *lab.Node) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(node.NetworksDir(), "net"))
	must.Succeed(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "10.") {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestUninstallUnderRunningPods removes leasehold from a node with running pods. Every DEL of these
// reaches host-local, whichever configuration the runtime uses, and however host-local is
// installed. Then the name leasehold is gone, and no address is in use.
func TestUninstallUnderRunningPods(t *testing.T) {
	ipam := `"ipam":{"type":"leasehold","ranges":[[{"subnet":"10.1.0.0/24"}]],"dataDir":"@/networks"}`
	replaced := strings.Replace(ipam, "leasehold", "host-local", 1)
	const chained = `{"type":"leasehold"},{"type":"portmap","capabilities":{"portMappings":true}}`
	const bridge = `{"type":"bridge","bridge":"br9","isGateway":true,` + annotations
	flannel := `{"type":"flannel",` + annotations + `"subnetFile":"@/subnet.env","delegate":{"bridge":"cni9"},` +
		`"ipam":{"type":"leasehold","dataDir":"@/networks"}}`
	// As containerd does: with the configuration of now.
	now := func(s *lab.Sandbox, net *lab.Network) error { return s.Del(net) }
	// As CRI-O does: with the configuration of the ADD; CHECK when it starts.
	crio := func(s *lab.Sandbox, net *lab.Network) error {
		stored := s.Stored(net)
		if err := s.Check(stored); err != nil {
			return fmt.Errorf("CHECK: %w", err)
		}
		return s.Del(stored)
	}
	for _, c := range []struct {
		name    string
		plugins string
		del     func(*lab.Sandbox, *lab.Network) error
		k3s     bool
		stays   bool // until uninstall is called again, because no DEL calls it
	}{
		{"bridge", bridge + ipam + `}`, now, false, true},
		{"bridge replayed", bridge + ipam + `}`, crio, false, false},
		{"bridge on k3s replayed", bridge + ipam + `}`, crio, true, false},
		{"bridge with a chained entry replayed", bridge + ipam + `},` + chained, crio, false, false},
		{"bridge with a chained entry alone replayed", bridge + replaced + `},` + chained, crio, false, false},
		{"flannel", flannel, now, false, false},
		{"flannel on k3s", flannel, now, true, false},
		{"flannel with a chained entry replayed", flannel + `,` + chained, crio, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := lab.NewNode(t)
			cniDir(t, node)
			if c.k3s {
				node.K3s()
			}
			if strings.Contains(c.plugins, replaced) {
				_, err := node.Leasectl("install", "--replace", "--cni-bin-dir="+filepath.Join(node.Dir, "bin"))
				must.Succeed(t, err)
			}
			path := writeList(t, node, `{"cniVersion":"0.4.0","name":"net","plugins":[`+c.plugins+`]}`)
			net := readList(t, node, path)
			var pods []*lab.Sandbox
			for i := range 4 {
				pod, _ := start(t, node, net, lab.NewPod("default", fmt.Sprintf("db-%d", i), "1h"))
				pods = append(pods, pod)
			}
			stop(t, pods[3], net) // its address is held
			text := uninstall(t, node, path)
			if len(addressFiles(t, node)) != 3 || !strings.Contains(text, "held for pods that are away: 1;") {
				t.Fatalf("the addresses in use are %v; it prints %s", addressFiles(t, node), text)
			}
			plugin := filepath.Join(node.Dir, "bin", "leasehold")
			isGone := func() bool {
				_, err := os.Lstat(plugin)
				return os.IsNotExist(err)
			}
			if isGone() || !strings.Contains(text, plugin+" stays") ||
				!strings.Contains(text, "and call leasectl uninstall again") {
				t.Fatalf("%s is gone while configurations of running pods name it, or nobody knows until when it "+
					"stays: %s", plugin, text)
			}
			// The runtime calls leasehold until it has read the configuration again.
			late, _ := start(t, node, net, lab.NewPod("default", "late", ""))
			stop(t, late, net)
			net = readList(t, node, path)
			must.Succeed(t, c.del(pods[0], net), "DEL")
			next, _ := start(t, node, net, lab.NewPod("default", "next", ""))
			stop(t, next, net)
			var last errgroup.Group // the last two end at the same time
			for _, pod := range pods[1:3] {
				last.Go(func() error { return c.del(pod, net) })
			}
			must.Succeed(t, last.Wait(), "DEL")
			check.Empty(t, addressFiles(t, node), "addresses of ended pods")
			if c.stays {
				uninstall(t, node, path)
			}
			background.Until(t, "gone: "+plugin, isGone)
		})
	}
}

// TestInstallOverTheForwarder installs leasehold again while what uninstall has left waits for the
// end of the last DEL. The plugin is not removed.
func TestInstallOverTheForwarder(t *testing.T) {
	node := lab.NewNode(t)
	cniDir(t, node)
	entry := `"type":"bridge","bridge":"br9","ipam":` +
		`{"type":"leasehold","ranges":[[{"subnet":"10.1.0.0/24"}]],"dataDir":"@/networks"}}`
	path := writeList(t, node, `{"cniVersion":"0.4.0","name":"net","plugins":[{`+entry+`]}`)
	named := readList(t, node, path)
	pod, _ := start(t, node, named, lab.NewPod("default", "db-0", "1h"))
	uninstall(t, node, path)
	if r := node.Call(lab.Call{Verb: "DEL", ContainerID: pod.ID, NetNS: pod.NetNS, IfName: "eth0", Args: pod.CNIArgs(),
		Stdin: strings.ReplaceAll(`{"cniVersion":"0.4.0","name":"net",`+entry, "@", node.Dir)}); r.Exit != 0 {
		t.Fatalf("DEL: %s", r.Stdout)
	}
	out, err := node.Leasectl("install", "--cni-bin-dir="+filepath.Join(node.Dir, "bin"))
	must.Succeed(t, err, out)
	must.Succeed(t, pod.Del(named))
	background.Until(t, "ended: the forwarder", func() bool {
		programs, _ := filepath.Glob("/proc/[0-9]*/exe")
		return !slices.ContainsFunc(programs, func(path string) bool {
			program, _ := os.Readlink(path)
			return strings.HasPrefix(filepath.Base(program), "leasehold")
		})
	})
	if !slices.Equal(must.Read(t, filepath.Join(node.Dir, "bin", "leasehold")), must.Read(t, lab.Bin("leasehold"))) {
		t.Error("the plugin that was installed again is gone")
	}
}

// TestUninstallKeepsNoUnownedFile removes leasehold from a node on which an interface has an
// address that no file of host-local's or libcni's names. No DEL could remove a file of that
// address.
func TestUninstallKeepsNoUnownedFile(t *testing.T) {
	node := lab.NewNode(t)
	cniDir(t, node)
	path := writeList(t, node, `{"cniVersion":"0.4.0","name":"net","plugins":[{"type":"bridge","bridge":"br9","ipam":`+
		`{"type":"leasehold","ranges":[[{"subnet":"10.1.0.0/24"}]],"dataDir":"@/networks"}}]}`)
	unknown := node.Sandbox(lab.NewPod("default", "unknown", ""))
	must.Succeed(t, unknown.Address("10.1.0.77/24"))
	known, address := start(t, node, readList(t, node, path), lab.NewPod("default", "known", ""))
	if files := addressFiles(t, node); !slices.Contains(files, "10.1.0.77") {
		t.Fatalf("the address of the interface is not in use: %v", files)
	}
	text := uninstall(t, node, path)
	check.Slices(t, addressFiles(t, node), []string{address}, "the files")
	check.Contains(t, text, "addresses on interfaces of unknown containers: 10.1.0.77;")
	stop(t, known, readList(t, node, path))
}
