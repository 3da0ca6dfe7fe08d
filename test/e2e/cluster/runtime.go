package cluster

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// Runtime is the configuration of a node's container runtime.
type Runtime struct {
	ConfDir, BinDir string // of CNI; if empty, the usual ones
	// Networks is how many networks in ConfDir pods get an interface in; 0 is 1. CRI-O
	// has one.
	Networks int
}

func (n *Node) startRuntime(ctx context.Context) error { return n.StartRuntime(ctx, Runtime{}) }

// StartRuntime starts the container runtime, and waits until its CRI service responds.
func (n *Node) StartRuntime(ctx context.Context, r Runtime) error {
	r.ConfDir, r.BinDir, r.Networks = cmp.Or(r.ConfDir, confDir), cmp.Or(r.BinDir, binDir), max(r.Networks, 1)
	prepare := n.containerd
	if n.IsCRIO() {
		prepare = n.crio
	}
	s, err := prepare(r)
	if err != nil {
		return err
	}
	s.Name, s.Log = ContainerRuntime, n.cluster.Log(n.Name, ContainerRuntime)
	s.Env = []string{"PATH=" + filepath.Dir(s.Argv[0]) + ":" + servicePath} // containerd's shim is beside it
	if err := n.Machine().Start(ctx, s); err != nil {
		return err
	}
	// A version is not sufficient: the CRI service starts later, and the kubelet exits if it does
	// not respond.
	return machine.Poll(ctx, 5*time.Minute, func() error {
		_, err := inspect.Sandboxes(ctx, n.Root(), "")
		return err
	})
}

// servicePath is the PATH of services: /usr/sbin may not be in the caller's.
const servicePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// IsCRIO reports whether the runtime is CRI-O.
func (n *Node) IsCRIO() bool { return n.cluster.CRIO != "" }

// CallsStatus reports whether the runtime calls STATUS.
func (n *Node) CallsStatus() bool { return n.IsCRIO() || n.containerdVersion() == "2.4" }

// socket is the path of the runtime's CRI socket.
func (n *Node) socket() string {
	if n.IsCRIO() {
		return inspect.CRIOSocket
	}
	return inspect.ContainerdSocket
}

// OCIRuntime returns the path of the program that starts and ends containers.
func (n *Node) OCIRuntime() string {
	if n.IsCRIO() {
		return crioRunc
	}
	return n.runc()
}

func (n *Node) runc() string {
	for _, dir := range []string{"usr/sbin", "usr/bin"} {
		if path := n.cluster.path("bin/debian/" + dir + "/runc"); exists(path) {
			return path
		}
	}
	return "runc"
}

// Forget kills the container runtime and the processes of containers, and removes the containers
// from its records, in this order: a sandbox, which may have no process, after its containers.
func (n *Node) Forget(ctx context.Context, containers []inspect.Container) error {
	if n.IsCRIO() { // which has its records in memory
		if err := n.Kill(ctx, ContainerRuntime); err != nil {
			return err
		}
	}
	for _, c := range containers {
		if c.PID != 0 {
			if _, err := n.Machine().Run(ctx, "kill", "-9", fmt.Sprint(c.PID)); err != nil {
				return err
			}
		}
		if err := n.forget(ctx, c.ID); err != nil {
			return fmt.Errorf("container %s is not forgotten: %w", c.ID, err)
		}
	}
	return n.Kill(ctx, ContainerRuntime)
}

func (n *Node) forget(ctx context.Context, id string) error {
	if n.IsCRIO() {
		return n.forgetCRIO(id)
	}
	return machine.Poll(ctx, 5*time.Minute, func() error {
		n.ctr(ctx, "tasks", "rm", "--force", id) // unless containerd was quicker
		_, err := n.ctr(ctx, "containers", "rm", id)
		return err
	})
}

// UseRegistry has the node pull from a registry without TLS at an address.
func (n *Node) UseRegistry(ctx context.Context, addr string) error {
	if n.IsCRIO() {
		return n.useRegistryCRIO(ctx, addr)
	}
	return n.configure(filepath.Join(registriesDir, addr, "hosts.toml"), "hosts.toml", addr) // read at each pull
}
