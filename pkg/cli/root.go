package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
	"github.com/spf13/cobra"
)

// Exit codes of leasectl.
const (
	exitOK       = 0
	exitProblems = 1 // a check found problems, or the command failed
	ExitUsage    = 2 // invalid arguments or flags

	exitUnchecked = 2 // of doctor: nothing was found, but something could not be checked
)

// errProblems is returned by commands that have already printed the problems. Run prints nothing
// for it.
var errProblems = errors.New("problems found")

// errUsage marks errors in the arguments and flags of the user.
var errUsage = errors.New("usage")

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
}

// Env is the environment in which the commands run.
type Env struct {
	Stdout, Stderr io.Writer
	Dirs           store.Dirs
	Host           *host.Host
	Clock          func() lease.Instant // returns the current time without the boot ID
	Version        string
	// Plugin reports whether the program was called as the kubectl plugin. Its commands are then
	// about a cluster, not about the node on which it runs.
	Plugin bool
}

// Run executes one command line and returns the exit code.
func Run(ctx context.Context, env Env, args []string) int {
	env.Stdout, env.Stderr = plain{env.Stdout}, plain{env.Stderr}
	a := &app{Env: env}
	root := a.leasectl()
	if env.Plugin {
		root = a.plugin()
	}
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SilenceUsage, root.SilenceErrors, root.Version = true, true, env.Version
	root.SetArgs(args)
	a.program = root.DisplayName()
	command, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errProblems):
		return exitProblems
	case errors.Is(err, errUnchecked):
		return exitUnchecked
	case errors.Is(err, errUsage), isCobraUsage(err):
		fmt.Fprintf(env.Stderr, "%s: %s\nTry '%s --help'.\n", a.program, strings.TrimPrefix(err.Error(), "usage: "),
			command.CommandPath())
		return ExitUsage
	}
	hint := ""
	switch {
	case errors.Is(err, store.ErrLost) && !env.Plugin:
		hint = "; 'leasectl recover' adopts what this node shows"
	case errors.Is(err, transact.ErrNoHostView):
		hint = "; " + runOnHost
	}
	fmt.Fprintf(env.Stderr, "%s: %v%s\n", a.program, err, hint)
	return exitProblems
}

// runOnHost is what to do if leasectl is not proven to see the host.
const runOnHost = "run leasectl as root on the node itself, or in the agent's container with " +
	"--host-root=/proc/1/root"

// isCobraUsage reports whether err is an error of cobra about flags, arguments or commands. These
// errors have no type, so their texts are compared.
func isCobraUsage(err error) bool {
	for _, prefix := range []string{
		"unknown ", "invalid argument", "accepts ", "requires ", "flag needs", "required flag", "bad flag",
		"if any flags in the group", "at least one of the flags",
	} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}

// app has the environment and the values of the flags that several commands have.
type app struct {
	Env
	filter
	program string // as users call it
	output  string
	root    string // root directory of the host's file system
}

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

// A command has those of the following flags that it uses.

func (a *app) outputFlag(c *cobra.Command) {
	c.Flags().FuncP("output", "o", "output `format`: table or json (default table)", oneOf(&a.output, "table", "json"))
}

func (a *app) networkFlag(c *cobra.Command) {
	c.Flags().StringVar(&a.network, "network", "", "only this CNI network")
}

func (a *app) reserveAsFlag(c *cobra.Command) {
	c.Flags().Func("reserve-as",
		"only the leases of this reservation `name` (annotation leasehold.dev/reserve-as), or of namespace/name",
		func(s string) error {
			if a.reserveAs = s; strings.Count(s, "/") > 1 || strings.HasPrefix(s, "/") || strings.HasSuffix(s, "/") {
				return errors.New("want name or namespace/name")
			}
			return nil
		})
}

func (a *app) stateFlag(c *cobra.Command) {
	c.Flags().Func("state", "only leases in this `state`: bound or held", oneOf(&a.state, "bound", "held"))
}

// oneOf returns what sets a flag that has one of two values. With an empty value, which scripts may
// have, it counts as not given.
func oneOf(to *string, first, second string) func(string) error {
	return func(s string) error {
		if *to = s; s != "" && s != first && s != second {
			return fmt.Errorf("want %s or %s", first, second)
		}
		return nil
	}
}

func (a *app) store() *store.Store {
	s := store.New(a.Dirs)
	if a.Host != nil {
		s.BootID = a.Host.BootID
	}
	return s
}

func (a *app) service() *ipam.Service {
	return &ipam.Service{Node: &transact.Node{Store: a.store(), Host: a.Host, Clock: a.Clock,
		Warn: func(text string) { a.say("%s", text) }}}
}

// view runs fn in a read transaction. If no store was created yet, view does not run fn and returns
// nil.
func (a *app) view(ctx context.Context, fn func(*store.Tx) error) error {
	if err := a.store().View(ctx, fn); !store.IsEmpty(err) {
		return err
	}
	return nil
}

// filter selects leases, journal entries and reservations. Fields that are "" select all.
type filter struct {
	address   string // from the argument
	pod       string // as namespace/name: from the argument
	reserveAs string // a reservation name, or a namespace and one
	network   string
	state     string
}

// parse sets the filter of the argument of list, history and release: an address, or a pod as
// namespace/name.
func (f *filter) parse(args []string) error {
	for _, s := range args {
		if addr, err := netip.ParseAddr(s); err == nil {
			f.address = addr.Unmap().String()
		} else if ns, name, ok := strings.Cut(s, "/"); ok && ns != "" && name != "" && !strings.Contains(name, "/") {
			f.pod = s
		} else {
			return usage("%q is neither an IP address nor namespace/pod", s)
		}
	}
	return nil
}

// selects reports whether the filter selects something of a pod with these addresses, in any
// network and state.
func (f filter) selects(namespace, pod, reservation string, addresses ...string) bool {
	return (f.address == "" || slices.Contains(addresses, f.address)) &&
		(f.pod == "" || f.pod == namespace+"/"+pod) &&
		(f.reserveAs == "" || reservation != "" &&
			(f.reserveAs == reservation || f.reserveAs == namespace+"/"+reservation))
}

// selected reports whether the filter selects a lease.
func (f filter) selected(l lease.Lease) bool {
	return (f.network == "" || l.Pool.Network == f.network) &&
		(f.state == "" || strings.EqualFold(l.State.String(), f.state)) &&
		f.selects(l.Namespace, l.Name, l.Reservation, l.Address.String())
}
