package scenarios

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// conformanceEnv is the environment variable with the directory of the reports, in which
// test/conformance/kubernetes builds. A process that has it runs Kubernetes' end-to-end tests
// instead of the scenarios.
const conformanceEnv = "LEASEHOLD_CONFORMANCE"

// conformanceTable is the table of such a process.
var conformanceTable = []scenario{
	does("conformance", "Kubernetes' end-to-end tests, with host-local and with leasehold", conformance),
}

// conformanceLimit is more than the time in which all specs run with one plugin.
const conformanceLimit = time.Hour

// conformance runs the specs with each plugin. Both serve the same network in turn, as they do on a
// node where leasehold is installed in host-local's place.
func conformance(t *Test) {
	dir := os.Getenv(conformanceEnv)
	built := filepath.Join(dir, "kubernetes")
	for _, n := range t.ownNodes() {
		t.Must(n.ImportImages(t.Ctx, filepath.Join(built, "images")))
		t.Must(n.InstallPlugin(filepath.Join(t.Cluster.Repo, "bin/leasehold")))
		t.Must(n.Machine().Start(t.Ctx, machine.Service{Name: "kube-proxy", Restart: true,
			Log: t.Cluster.Log(n.Name, "kube-proxy"),
			Argv: []string{filepath.Join(built, "kube-proxy"), "--kubeconfig=" + t.Cluster.Kubeconfig(),
				"--hostname-override=" + n.Name,
				// The limits of the host, which machines cannot change.
				"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s",
				"--conntrack-tcp-timeout-close-wait=0s"}}))
		t.Cleanup(func() { t.Must(n.Stop(t.Ctx, "kube-proxy")) })
	}
	t.Kubectl("apply", "--namespace=kube-system", "-f", filepath.Join(t.Cluster.Repo, "test/conformance/coredns.yaml"))
	for _, plugin := range []string{"host-local", "leasehold"} {
		for _, n := range t.ownNodes() {
			network := n.DefaultNetwork()
			network.IPAM = map[string]any{"type": plugin}
			if plugin == "leasehold" {
				network.WithoutAnnotations = true // so that the default window is that of every pod
				network.IPAM["defaultWindow"] = "10m"
			}
			t.Must(n.SetNetworks(t.Ctx, network))
		}
		t.Step("the specs run with %s", plugin)
		t.Must(runSpecs(t, built, filepath.Join(dir, plugin)))
	}
	leasectl := filepath.Join(t.Cluster.Repo, "bin/leasectl")
	for _, node := range t.nodes {
		leases, err := inspect.Leases(t.Ctx, t.Cluster.Machine(node), leasectl, true)
		t.Must(err)
		held := slices.DeleteFunc(leases, func(l cli.Row) bool { return l.State != "Held" })
		t.Step("%s holds %d addresses of pods that have ended", node, len(held))
		if len(held) == 0 {
			t.Errorf("%s holds no address: no pod was retained", node)
		}
	}
}

// runSpecs runs the specs that are named in a file of the build directory. Whether they passed is
// only in the report.
func runSpecs(t *Test, built, report string) error {
	specs, err := os.ReadFile(filepath.Join(built, "specs"))
	if err != nil {
		return err
	}
	args := []string{"--procs=6", "--no-color", "--flake-attempts=2", "--timeout=" + conformanceLimit.String(),
		"--output-dir=" + report, "--json-report=kubernetes.json"}
	for line := range strings.Lines(string(specs)) {
		args = append(args, "--focus="+regexp.QuoteMeta(strings.TrimSuffix(line, "\n"))+"$")
	}
	args = append(args, filepath.Join(built, "e2e.test"), "--", "--provider=skeleton", "--disable-log-dump",
		"--kubeconfig="+t.Cluster.Kubeconfig(), fmt.Sprintf("--num-nodes=%d", len(t.nodes)))
	log, err := os.Create(filepath.Join(report, "kubernetes.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(t.Ctx, filepath.Join(built, "ginkgo"), args...)
	cmd.Dir = report // ginkgo writes files of its processes there
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	if _, missing := os.Stat(filepath.Join(report, "kubernetes.json")); missing != nil {
		return fmt.Errorf("no report was written, see %s: %w", log.Name(), err)
	}
	return nil
}
