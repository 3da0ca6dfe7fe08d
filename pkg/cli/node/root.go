package node

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// app has the environment, and the values of the flags that several commands have.
type app struct {
	*cli.App
	Dirs    store.Dirs
	Host    *host.Host
	root    string // root directory of the host's file system
	network string // "" for all
	state   string // of leases; "" for all
}

// Run executes one command line of leasectl and returns the exit code.
func Run(ctx context.Context, env cli.Env, dirs store.Dirs, h *host.Host, args []string) int {
	a := &app{App: cli.New(env), Dirs: dirs, Host: h}
	return a.Run(ctx, a.leasectl(), args, func(err error) string {
		switch {
		case errors.Is(err, store.ErrLost):
			return "; 'leasectl recover' imports what this node shows"
		case errors.Is(err, operation.ErrNoHostView):
			return "; " + runOnHost
		}
		return ""
	})
}

// runOnHost is what to do if leasectl is not proven to see the host.
const runOnHost = "run leasectl as root on the node itself, or in the agent's container with " +
	"--host-root=/proc/1/root"

// leasectl returns the command tree of leasectl.
func (a *app) leasectl() *cobra.Command {
	root := &cobra.Command{
		Use:   "leasectl",
		Short: "Show and manage the addresses of the leasehold IPAM plugin on this node",
		Long: `leasectl reads and changes the lease store of the leasehold IPAM plugin on this
node. It has to run as root on the node itself, or in the pod of the node's agent:
kubectl -n leasehold-system exec POD -c agent -- /leasectl --host-root=/proc/1/root list`,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.enter() },
	}
	root.PersistentFlags().StringVar(&a.root, "host-root", "/",
		"root of the host's file system: / or /proc/<pid>/root")
	root.AddCommand(a.check(), a.doctor(), a.gc(), a.history(), a.install(), a.list(), a.pools(), a.recover(),
		a.release(), a.reserve(), a.uninstall(), idle())
	return root
}

// enter changes the root directory to that of the host.
func (a *app) enter() (err error) {
	a.Host, err = host.EnterHostRoot(a.root, a.Host)
	return err
}

func (a *app) networkFlag(c *cobra.Command) {
	c.Flags().StringVar(&a.network, "network", "", "only this CNI network")
}

func (a *app) stateFlag(c *cobra.Command) {
	c.Flags().Func("state", "only leases in this `state`: bound or held", cli.OneOf(&a.state, "bound", "held"))
}

func (a *app) store() *store.Store {
	s := store.New(a.Dirs)
	s.BootID = a.Host.BootID
	return s
}

func (a *app) service() *maintain.Service {
	return &maintain.Service{Node: &operation.Node{Store: a.store(), Host: a.Host, Clock: a.Clock,
		Warn: func(text string) { a.Say("%s", text) }}}
}

// selected reports whether the argument and the flags select a lease.
func (a *app) selected(l lease.Lease) bool {
	return (a.network == "" || l.Pool.Network == a.network) &&
		(a.state == "" || strings.EqualFold(l.State.String(), a.state)) &&
		a.Selects(l.Namespace, l.Name, l.ReserveAs, l.Address.String())
}

// cniFlags are the flags with which a command finds the CNI configurations and plugins of the
// runtime.
type cniFlags struct {
	confDir, runtimeConf string
	binDirs              []string
}

func (c *cniFlags) register(command *cobra.Command) {
	f := command.Flags()
	f.StringVar(&c.confDir, "cni-conf-dir", "",
		"the runtime's `directory` of CNI configurations (default what the runtime's configuration names)")
	f.StringSliceVar(&c.binDirs, "cni-bin-dir", nil,
		"the runtime's `directories` of CNI plugins (default what the runtime's configuration names)")
	f.StringVar(&c.runtimeConf, "runtime-conf", cniconf.RuntimeFiles,
		"`files` with the configuration of the container runtime")
}

// runtime returns what the flags, or else the configuration files of the container runtime, say
// about CNI.
func (c *cniFlags) runtime() cniconf.Runtime {
	r := cniconf.ReadRuntime(c.runtimeConf)
	if len(c.binDirs) > 0 {
		r.BinDirs = c.binDirs
	}
	r.ConfDir = cmp.Or(c.confDir, r.ConfDir)
	return r
}
