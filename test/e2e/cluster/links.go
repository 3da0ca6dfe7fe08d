package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
)

// ip runs commands of ip(8), one a line, in the network namespace of a process.
func ip(ctx context.Context, pid string, commands ...string) error {
	cmd := exec.CommandContext(ctx, "nsenter", "--net=/proc/"+pid+"/ns/net", "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n"))
	if _, err := runCmd(cmd); err != nil {
		return fmt.Errorf("%w: %q", err, commands)
	}
	return nil
}

const onHost = "self"

// makeBridge creates the bridge on the host that connects all machines.
func (c *Cluster) makeBridge(ctx context.Context) error {
	commands := []string{"link add " + c.bridge() + " type bridge"}
	for _, p := range c.families(c.hostAddr()) {
		commands = append(commands, fmt.Sprintf("address add %v dev %s", p, c.bridge()))
	}
	return ip(ctx, onHost, append(commands, "link set "+c.bridge()+" up")...)
}

func (c *Cluster) families(p netip.Prefix) []netip.Prefix {
	if c.DualStack {
		return []netip.Prefix{p, c.v6(p)}
	}
	return []netip.Prefix{p}
}

// port returns the name of the host's end of a machine's veth.
func (c *Cluster) port(name string) string { return c.bridge() + "-" + name }

// attach creates eth0 of a machine, with routes to the pods of all nodes. Those of nodes with
// kube-router are kube-router's.
func (c *Cluster) attach(ctx context.Context, name string, pid int, addr netip.Prefix) error {
	if err := detach(ctx, c.port(name)); err != nil {
		return err
	}
	err := ip(ctx, onHost, fmt.Sprintf("link add %s master %s type veth peer name eth0 netns %d", c.port(name),
		c.bridge(), pid), "link set "+c.port(name)+" up")
	if err != nil {
		return err
	}
	var commands []string
	add := func(format string, args ...any) {
		commands = append(commands, fmt.Sprintf(format+" dev eth0", args...))
	}
	for _, p := range c.families(addr) {
		// Addresses are unique, and the kubelet does not wait for the detection of duplicates.
		add("address add %v%s", p, map[bool]string{true: " nodad"}[p.Addr().Is6()])
	}
	commands = append(commands, "link set eth0 up")
	for i := range c.Nodes {
		via := c.nodeAddr(i)
		if via == addr || c.CNI == KubeRouter && addr != c.controlAddr() {
			continue
		}
		add("route add %v via %v", c.PodSubnet(i), via.Addr())
		if c.DualStack {
			add("route add %v via %v", c.PodSubnet6(i), c.v6(via).Addr())
		}
	}
	// The cluster IP of the Service "kubernetes" needs no kube-proxy: the control plane has it and
	// listens on the port.
	if addr == c.controlAddr() {
		add("address add %s/32", apiService)
	} else {
		add("route add %s via %v", apiService, c.ControlAddr())
	}
	add("route add default via %v", c.HostAddr()) // the kubelet requires one; it leads nowhere
	return ip(ctx, fmt.Sprint(pid), commands...)
}

// detach removes a link of the host, if it exists. The kernel removes that of a machine which has
// just been killed, too.
func detach(ctx context.Context, name string) error {
	err := ip(ctx, onHost, "link delete "+name)
	if !exists("/sys/class/net/" + name) {
		return nil
	}
	return err
}

// setPort sets the host's end of a machine's veth up or down.
func (c *Cluster) setPort(name, state string) error {
	return ip(context.Background(), onHost, "link set "+c.port(name)+" "+state)
}
