package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// Annotations is the capability with which runtimes pass a pod's annotations to a plugin.
const Annotations = "io.kubernetes.cri.pod-annotations"

// A Node simulates a machine: a network namespace for its links, the plugin's state, a boot id and
// a clock.
type Node struct {
	Dir   string        // its files: state, networks, cache, bin
	Clock time.Duration // offset of its clock from the real one
	Disk  *SlowDisk     // of its Calls; may be nil

	t    testing.TB
	host string // its network namespace
	cni  *libcni.CNIConfig
}

// NewNode returns a node that is removed when the test ends.
func NewNode(t testing.TB) *Node {
	t.Helper()
	n := &Node{Dir: t.TempDir(), t: t}
	bin := n.mkdir("bin") // CNI_PATH
	n.Install("leasehold", Bin("leasehold"))
	for _, name := range upstream {
		n.Install(name, Bin(name))
	}
	n.Reboot()

	var err error
	n.host, err = newNetNS()
	must.Succeed(t, err, "network namespace of the node")
	t.Cleanup(func() { removeNetNS(n.host) })
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{bin}, n.mkdir("cache"),
		&runtimeExec{DefaultExec: invoke.DefaultExec{RawExec: &invoke.RawExec{}}, node: n})
	return n
}

// upstream are the plugins of containernetworking and flannel.
var upstream = []string{"bridge", "flannel", "host-local", "loopback", "macvlan", "portmap", "ptp"}

// K3s replaces the upstream plugins by links to one program, as k3s has them.
func (n *Node) K3s() {
	plugins := n.mkdir("k3s/bin/plugins")
	program := filepath.Join(filepath.Dir(plugins), "cni")
	content, err := os.ReadFile(Bin("k3s"))
	if err == nil {
		err = os.WriteFile(program, content, 0o755)
	}
	for _, name := range upstream {
		n.Install(name, program)
		err = errors.Join(err, os.Symlink(Bin(name), filepath.Join(plugins, name)))
	}
	must.Succeed(n.t, err, "the plugins of k3s")
}

// Install installs a program in the node's plugin directory.
func (n *Node) Install(name, program string) {
	path := filepath.Join(n.Dir, "bin", name)
	os.Remove(path)
	must.Succeed(n.t, os.Symlink(program, path), "install", name)
}

// Reboot gives the node another boot id and an empty run directory. The caller kills its processes.
func (n *Node) Reboot() {
	os.RemoveAll(n.RunDir())
	os.MkdirAll(filepath.Dir(n.RunDir()), 0o755)
	must.Succeed(n.t, os.WriteFile(n.bootIDFile(), []byte(newUUID()+"\n"), 0o644), "boot id")
}

// StateDir, RunDir and NetworksDir return the directories of the node's plugin.
func (n *Node) StateDir() string { return filepath.Join(n.Dir, "state") }
func (n *Node) RunDir() string {
	return filepath.Join("/run/lab", strings.ReplaceAll(strings.Trim(n.Dir, "/"), "/", "_"))
}
func (n *Node) NetworksDir() string { return filepath.Join(n.Dir, "networks") }
func (n *Node) bootIDFile() string  { return filepath.Join(n.Dir, "boot_id") }

func (n *Node) mkdir(name string) string {
	dir := filepath.Join(n.Dir, name)
	must.Succeed(n.t, os.MkdirAll(dir, 0o755))
	return dir
}

// Environ returns the environment variables of the node's programs, without those of CNI.
func (n *Node) Environ() []string {
	return []string{
		"LEASEHOLD_STATE_DIR=" + n.StateDir(),
		"LEASEHOLD_RUN_DIR=" + n.RunDir(),
		"LEASEHOLD_BOOT_ID_FILE=" + n.bootIDFile(),
		"LEASEHOLD_CLOCK_OFFSET=" + n.Clock.String(),
	}
}

// Do calls f on a thread in the node's network namespace.
func (n *Node) Do(f func() error) error {
	return ns.WithNetNSPath(n.host, func(ns.NetNS) error { return f() })
}

// Command runs a program on the node, and returns its standard output.
func (n *Node) Command(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), n.Environ()...)
	var out []byte
	err := n.Do(func() (err error) {
		out, err = cmd.Output()
		return err
	})
	if exit, ok := err.(*exec.ExitError); ok {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}

// Leasectl runs leasectl on the node.
func (n *Node) Leasectl(args ...string) (string, error) { return n.Command(Bin("leasectl"), args...) }

// A Lease is an element of the output of `leasectl -o json list`.
type Lease = cli.Row

// Leases returns the node's leases. filter is passed to `leasectl list`.
func (n *Node) Leases(filter ...string) []Lease {
	n.t.Helper()
	out, err := n.Leasectl(append([]string{"-o", "json", "list"}, filter...)...)
	must.Succeed(n.t, err, "leasectl list")
	var leases []Lease
	must.Succeed(n.t, json.Unmarshal([]byte(out), &leases), "leasectl list printed", out)
	return leases
}

// LeasesByAddress returns the leases by their addresses.
func (n *Node) LeasesByAddress(filter ...string) map[string]Lease {
	n.t.Helper()
	leases := map[string]Lease{}
	for _, l := range n.Leases(filter...) {
		leases[l.Address] = l
	}
	return leases
}

// Check runs leasectl check.
func (n *Node) Check() {
	n.t.Helper()
	out, err := n.Leasectl("check")
	must.Succeed(n.t, err, "leasectl check", out)
}

// runtimeExec executes plugins like a runtime on the node.
type runtimeExec struct {
	invoke.DefaultExec
	node *Node
}

func (e *runtimeExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) (out []byte,
	err error) {
	doErr := e.node.Do(func() error {
		out, err = e.DefaultExec.ExecPlugin(ctx, path, stdin, append(environ, e.node.Environ()...))
		return nil
	})
	if err == nil {
		err = doErr
	}
	return out, err
}

// A Call is a call of a plugin binary without libcni, for calls that libcni does not make.
type Call struct {
	Plugin      string // in the node's plugin directory; default leasehold
	Verb        string
	ContainerID string
	NetNS       string
	IfName      string
	Args        string
	Stdin       string
	Wrap        []string // a program and its arguments that runs the plugin, such as strace
	Harm        *Harm    // nil for none
}

// A Reply is the result of a Call.
type Reply struct {
	Stdout, Stderr string
	Exit           int          // -1: killed by a signal
	Err            *types.Error // the CNI error on stdout if Exit is not 0
	Harmed         string       // the system call that failed because of Harm, "" if none
	Took           time.Duration
}

// IsBusy reports whether the call failed because it has waited for the store for as long as it may.
// One of many calls at once may on a busy machine, and a runtime repeats it.
func (r Reply) IsBusy() bool {
	return r.Err != nil && strings.Contains(r.Err.Error(), store.ErrBusy.Error())
}

// Addresses returns the addresses in the result of an ADD.
func (r Reply) Addresses() (addrs []string) {
	var result struct {
		IPs []struct{ Address string }
	}
	_ = json.Unmarshal([]byte(r.Stdout), &result)
	for _, ip := range result.IPs {
		addr, _, _ := strings.Cut(ip.Address, "/")
		addrs = append(addrs, addr)
	}
	return addrs
}

// Call runs a plugin binary.
func (n *Node) Call(c Call) Reply {
	n.t.Helper()
	if c.Plugin == "" {
		c.Plugin = "leasehold"
	}
	argv := append(append([]string{}, c.Wrap...), filepath.Join(n.Dir, "bin", c.Plugin))
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(n.Environ(), "PATH="+os.Getenv("PATH"), "CNI_PATH="+filepath.Join(n.Dir, "bin"),
		"CNI_COMMAND="+c.Verb)
	for name, value := range map[string]string{"CNI_CONTAINERID": c.ContainerID, "CNI_NETNS": c.NetNS,
		"CNI_IFNAME": c.IfName, "CNI_ARGS": c.Args} {
		if value != "" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.Stdin), &stdout, &stderr
	harmed, took := "", time.Duration(0)
	err := n.Do(func() (err error) {
		began := time.Now()
		switch {
		case c.Harm != nil:
			harmed, err = c.Harm.run(cmd)
		case n.Disk != nil:
			took, err = n.Disk.run(cmd)
			return err
		default:
			err = cmd.Run()
		}
		took = time.Since(began)
		return err
	})
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		n.t.Fatalf("%s: %v", argv[0], err)
	}
	reply := Reply{Stdout: stdout.String(), Stderr: stderr.String(), Exit: cmd.ProcessState.ExitCode(), Harmed: harmed,
		Took: took}
	if reply.Exit != 0 {
		var e types.Error
		if json.Unmarshal([]byte(reply.Stdout), &e) == nil {
			reply.Err = &e
		}
	}
	return reply
}
