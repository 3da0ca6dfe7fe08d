package cluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"
)

// A Call is a traced call of the IPAM plugin.
type Call struct {
	Time      time.Time
	Verb      string
	Container string
	NetNS     string
}

// Trace starts to log the calls of the node's IPAM plugin.
func (n *Node) Trace() error {
	plugin := n.Disk("/opt/cni/bin/" + n.cluster.IPAM)
	os.Remove(n.Disk("/var/log/cni-trace.log"))
	if !exists(plugin + ".real") {
		// Copied rather than renamed, because the runtime may call the plugin at any moment.
		if err := copyProgram(plugin, plugin+".real"); err != nil {
			return err
		}
	}
	return copyProgram(n.cluster.path("bin/own/trace"), plugin)
}

// Untrace stops what Trace started.
func (n *Node) Untrace() error {
	plugin := n.Disk("/opt/cni/bin/" + n.cluster.IPAM)
	err := os.Rename(plugin+".real", plugin)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Calls returns the traced calls.
func (n *Node) Calls() ([]Call, error) {
	data, err := os.ReadFile(n.Disk("/var/log/cni-trace.log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var calls []Call
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(f) != 4 {
			continue
		}
		when, err := time.Parse(time.RFC3339Nano, f[0])
		if err != nil {
			return nil, err
		}
		calls = append(calls, Call{when, f[1], f[2], f[3]})
	}
	return calls, nil
}

// buildTrace builds the program that logs calls and executes the plugin.
func (c *Cluster) buildTrace(ctx context.Context) error {
	_, err := c.buildProgram(ctx, Program{"test/e2e", "images/trace"})
	return err
}

func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeFileMode(to, data, 0o755)
}
