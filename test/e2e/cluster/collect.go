package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Collect saves what may explain a failed scenario in one directory: the logs of all services since
// it started, the API objects, and the state of each node.
func (c *Cluster) Collect(ctx context.Context, dir, namespace string, since time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	save := func(name string, argv ...string) {
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			out = append(out, err.Error()...)
		}
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), out, 0o644))
	}
	kubectl := []string{c.Kubectl(), "--kubeconfig=" + c.Kubeconfig(), "--request-timeout=10s"}
	save("pods.txt", append(kubectl, "get", "pods", "-A", "-o", "wide")...)
	save("objects.yaml", append(kubectl, "get", "all", "-n", namespace, "-o", "yaml")...)
	save("system.yaml", append(kubectl, "get", "all", "-n", System, "-o", "yaml")...)
	save("reservations.yaml", append(kubectl, "get", "ipr", "-A", "-o", "yaml")...)
	save("webhooks.yaml", append(kubectl, "get", "mutatingwebhookconfigurations,validatingadmissionpolicies", "-o",
		"yaml")...)
	save("system-events.txt", append(kubectl, "get", "events", "-n", System, "--sort-by=.lastTimestamp")...)
	save("nodes.yaml", append(kubectl, "get", "nodes", "-o", "yaml")...)
	save("events.txt", append(kubectl, "get", "events", "-n", namespace, "--sort-by=.lastTimestamp")...)

	logs, _ := filepath.Glob(c.path("run/logs/*.log"))
	for _, log := range logs {
		errs = append(errs, copyTail(filepath.Join(dir, filepath.Base(log)), log, since))
	}
	for _, name := range c.NodeNames() {
		errs = append(errs, c.copyPodLogs(dir, name, namespace, since), c.copyPodLogs(dir, name, System, since))
		if c.PID(name) == 0 {
			continue
		}
		n := c.Node(name)
		onNode := func(file string, argv ...string) {
			out, err := n.Machine().Run(ctx, argv...)
			if err != nil {
				out = append(out, err.Error()...)
			}
			errs = append(errs, os.WriteFile(filepath.Join(dir, name+"-"+file), out, 0o644))
		}
		onNode("network.txt", "sh", "-c", "cat /etc/cni/net.d/*; ls -l /opt/cni/bin /run/netns /var/lib/cni/*/*; "+
			"for ns in /run/netns/*; do echo $ns; nsenter --net=$ns ip -br addr; done; ip -br addr; ip route")
		onNode("leases.json", c.Leasectl(), "-o", "json", "list")
		onNode("history.txt", c.Leasectl(), "history")
	}
	return errors.Join(errs...)
}

// copyPodLogs copies the container logs of a namespace's pods from a node's disk, because the node
// may not respond. The path of such a log is NAMESPACE_POD_UID/CONTAINER/RESTARTS.log.
func (c *Cluster) copyPodLogs(dir, node, namespace string, since time.Time) error {
	root := c.Node(node).Disk("/var/log/pods")
	logs, err := filepath.Glob(filepath.Join(root, namespace+"_*/*/*.log"))
	if err != nil {
		return err
	}
	var errs []error
	for _, log := range logs {
		pod, container := filepath.Split(filepath.Dir(log))
		name := strings.Split(filepath.Base(pod), "_")[1]
		to := filepath.Join(dir, "pods", fmt.Sprintf("%s-%s-%s-%s", node, name, container, filepath.Base(log)))
		errs = append(errs, os.MkdirAll(filepath.Dir(to), 0o755), copyTail(to, log, since))
	}
	return errors.Join(errs...)
}

// copyTail copies the end of a log if it was written to since the given time.
func copyTail(to, from string, since time.Time) error {
	const most = 4 << 20
	info, err := os.Stat(from)
	if err != nil || info.ModTime().Before(since) {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data[max(0, len(data)-most):], 0o644)
}
