package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
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
	// Terminal reports whether standard error is a terminal. Colour reports whether standard output
	// may have colours.
	Terminal, Colour bool

	raw io.Writer // standard output without plain; for text that contains no names
}

// Run executes one command line and returns the exit code.
func Run(ctx context.Context, env Env, args []string) int {
	env.raw = env.Stdout
	env.Stdout, env.Stderr = plain{env.Stdout}, plain{env.Stderr}
	root := newRoot(env)
	if env.Plugin {
		root = newPlugin(env)
	}
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	name := root.Name()
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errProblems):
		return exitProblems
	case errors.Is(err, errUnchecked):
		return exitUnchecked
	case errors.Is(err, errUsage), isCobraUsage(err):
		fmt.Fprintf(env.Stderr, "%s: %s\nTry '%s --help'.\n", name, strings.TrimPrefix(err.Error(), "usage: "),
			command.CommandPath())
		return ExitUsage
	}
	hint := ""
	if errors.Is(err, store.ErrLost) && !env.Plugin {
		hint = "; 'leasectl recover' adopts what this node shows"
	}
	fmt.Fprintf(env.Stderr, "%s: %v%s\n", name, err, hint)
	return exitProblems
}

// isCobraUsage reports whether err is an error of cobra about flags, arguments or commands. These
// errors have no type, so their texts are compared.
func isCobraUsage(err error) bool {
	for _, prefix := range []string{
		"unknown ", "invalid argument", "accepts ", "requires ", "flag needs", "required flag", "bad flag",
	} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}

// app has the environment and the values of the global flags.
type app struct {
	Env
	output  string
	network string
	pod     string
	forName string // a reservation name, or a namespace and one
	state   string
	root    string // root directory of the host's file system

	defaultState string // the directory of the store if no flag sets it
}

// newRoot returns the command tree of leasectl.
func newRoot(env Env) *cobra.Command {
	a := &app{Env: env, defaultState: env.Dirs.State}
	root := &cobra.Command{
		Use:   "leasectl",
		Short: "Show and manage the addresses of the leasehold IPAM plugin on this node",
		Long: `leasectl reads and changes the lease store of the leasehold IPAM plugin on this
node. It has to run as root on the node itself, or in the pod of the node's agent:
kubectl -n leasehold-system exec POD -c agent -- /leasectl --host-root=/proc/1/root list`,
		Example: `  leasectl doctor                     what is wrong, and what repairs it
  leasectl list                       the addresses that are in use or held
  leasectl list --pod db/db-0 -o json the addresses of a pod, for a script
  leasectl show 10.244.1.7            the lease of an address in detail
  leasectl history 10.244.1.7         which pods had it before
  leasectl pools                      how many addresses are bound, held and free
  leasectl map                        the same as a picture
  leasectl release db/db-0            release the addresses of a pod
  leasectl gc --dry-run               what would be collected, and why
  leasectl check                      check the integrity of the store
  leasectl import --dry-run           which addresses would be adopted, and why
  leasectl install                    name leasehold in flannel's configuration
  leasectl uninstall                  remove leasehold from the cluster`,
		Version:       env.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			err := a.checkFlags()
			if c.Name() == "install" || c.Name() == "uninstall" {
				err = cmp.Or(err, rejectUnused(c))
			}
			if err != nil {
				return err
			}
			a.Host, err = host.EnterHostRoot(a.root, a.Host)
			return err
		},
	}
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	a.addFlags(root)
	root.AddCommand(
		a.filters(a.list(), "network", "pod", "for", "state"),
		a.filters(a.history(), "network", "for"),
		a.filters(a.release(), "network", "for", "state"),
		a.filters(a.gc(), "network", "pod"),
		a.show(), a.check(), a.install(), a.uninstall(), a.doctor())
	for _, add := range []func() *cobra.Command{a.pools, a.mapCmd, a.importCmd, a.export, a.recover} {
		root.AddCommand(a.filters(add(), "network"))
	}
	return root
}

// addFlags adds the flags that all commands have.
func (a *app) addFlags(root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVarP(&a.output, "output", "o", "table", "output format: table, wide or json")
	f.StringVar(&a.Dirs.State, "state-dir", a.Dirs.State, "directory of the lease store")
	f.StringVar(&a.root, "host-root", "/", "root of the host's file system: / or /proc/<pid>/root")
	complete(root, "output", "table", "wide", "json")
}

// filters adds the flags with these names, which select leases, to a command, with their
// completion. A command has those that it applies.
func (a *app) filters(c *cobra.Command, names ...string) *cobra.Command {
	f := c.Flags()
	for _, name := range names {
		word := func(lease.Lease) string { return "" }
		switch name {
		case "network":
			f.StringVar(&a.network, name, "", "only this CNI network")
			word = func(l lease.Lease) string { return l.Pool.Network }
		case "pod":
			f.StringVar(&a.pod, name, "", "only the leases of this pod, as namespace/name")
			word = func(l lease.Lease) string { return qualified(l.Namespace, l.Name) }
		case "for":
			a.forFlag(f)
			word = func(l lease.Lease) string { return qualified(l.Namespace, l.Reservation) }
		case "state":
			f.StringVar(&a.state, name, "", "only leases in this state: bound or held")
			complete(c, name, "bound", "held")
			continue
		}
		_ = c.RegisterFlagCompletionFunc(name, a.completeFlag(word))
	}
	return c
}

// qualified returns a name with its namespace, "" if there is no name.
func qualified(namespace, name string) string {
	if name == "" {
		return ""
	}
	return namespace + "/" + name
}

func (a *app) forFlag(f *pflag.FlagSet) {
	f.StringVar(&a.forName, "for", "",
		"only the leases of this reservation name (annotation leasehold.dev/reserve-as), as name or namespace/name")
}

// rejectUnused returns an error if a flag of all commands was set for a command that does not use
// it, because it is about configurations and not about the store.
func rejectUnused(c *cobra.Command) error {
	for _, name := range []string{"output", "state-dir"} {
		if c.Flags().Changed(name) {
			return usage("%s does not use --%s", c.Name(), name)
		}
	}
	return nil
}

func complete(c *cobra.Command, flag string, words ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

func (a *app) checkFlags() error {
	switch a.output {
	case "table", "wide", "json":
	default:
		return usage("invalid --output %q; want table, wide or json", a.output)
	}
	switch a.state {
	case "", "bound", "held":
	default:
		return usage("invalid --state %q; want bound or held", a.state)
	}
	if a.pod != "" && strings.Count(a.pod, "/") != 1 {
		return usage("invalid --pod %q; want namespace/name", a.pod)
	}
	if strings.Count(a.forName, "/") > 1 || strings.HasPrefix(a.forName, "/") || strings.HasSuffix(a.forName, "/") {
		return usage("invalid --for %q; want name or namespace/name", a.forName)
	}
	return nil
}

func (a *app) store() *store.Store { return store.New(a.Dirs) }

func (a *app) service() *maintain.Service {
	warn := func(text string) { fmt.Fprintln(a.Stderr, "leasectl:", text) }
	return &maintain.Service{Node: &transact.Node{Store: a.store(), Host: a.Host, Clock: a.Clock, Warn: warn}}
}

// view runs fn in a read transaction. If no store was created yet, view does not run fn and returns
// nil, or an error if a flag names the directory of the store.
func (a *app) view(ctx context.Context, fn func(*store.Tx) error) error {
	if _, err := os.Stat(a.Dirs.State); err != nil && os.IsNotExist(err) {
		if a.Dirs.State != a.defaultState {
			return fmt.Errorf("--state-dir: %w", err)
		}
		return nil
	}
	defer a.sayIfLocked()()
	err := a.store().View(ctx, fn)
	if store.IsEmpty(err) {
		return nil
	}
	return err
}

// isUnused reports whether there is no store yet. Then the commands that change leases have nothing
// to do, and must not create a store.
func (a *app) isUnused(ctx context.Context) (bool, error) {
	unused := true
	err := a.view(ctx, func(*store.Tx) error {
		unused = false
		return nil
	})
	if errors.Is(err, store.ErrLost) {
		return false, nil // the command reports or repairs the loss
	}
	return unused, err
}

// sayIfLocked starts a timer that prints a message on standard error if another process holds the
// lock of the store one second later. The caller calls stop as soon as it has the lock.
func (a *app) sayIfLocked() (stop func()) {
	t := time.AfterFunc(time.Second, func() {
		path := filepath.Join(a.Dirs.Run, "lock")
		f, err := os.Open(path)
		if err != nil {
			return
		}
		defer f.Close()
		if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
			fmt.Fprintf(a.Stderr, "leasectl: waiting for another process, which holds %s\n", path)
		}
	})
	return func() { t.Stop() }
}

// selected reports whether a lease matches the filters.
func (a *app) selected(l lease.Lease) bool {
	return (a.network == "" || l.Pool.Network == a.network) &&
		(a.pod == "" || l.Namespace+"/"+l.Name == a.pod) && a.isFor(l.Namespace, l.Reservation) &&
		(a.state == "" || strings.EqualFold(l.State.String(), a.state))
}

// isFor reports whether --for is not set, or names the reservation name of a namespace.
func (a *app) isFor(namespace, reservation string) bool {
	return a.forName == "" || reservation != "" && (a.forName == reservation || a.forName == namespace+"/"+reservation)
}

// subject is the argument of show, history and release: an address, or a pod as namespace/name. The
// other fields are zero. forName is the value of --for, if release has no argument.
type subject struct {
	addr    netip.Addr
	pod     string
	forName string
}

func parseSubject(s string) (subject, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return subject{addr: addr.Unmap()}, nil
	}
	if ns, name, ok := strings.Cut(s, "/"); ok && ns != "" && name != "" && !strings.Contains(name, "/") {
		return subject{pod: s}, nil
	}
	return subject{}, usage("%q is neither an IP address nor namespace/pod", s)
}

// is reports whether a lease with the given address, namespace and pod name matches the subject.
func (s subject) is(addr netip.Addr, namespace, name string) bool {
	if s.pod != "" {
		return namespace+"/"+name == s.pod
	}
	if s.forName != "" {
		return true // selected has compared the reservation names
	}
	return addr == s.addr
}

func (s subject) String() string {
	if s.pod != "" {
		return "pod " + s.pod
	}
	if s.forName != "" {
		return "reservation name " + s.forName
	}
	return s.addr.String()
}

// completeFlag returns the completion of a flag: the words that word returns for the leases.
func (a *app) completeFlag(word func(lease.Lease) string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		words := map[string]bool{}
		_ = a.view(cmd.Context(), func(tx *store.Tx) error {
			tx.All(func(l lease.Lease, err error) bool {
				if err == nil && word(l) != "" {
					words[word(l)] = true
				}
				return true
			})
			return nil
		})
		return slices.Sorted(maps.Keys(words)), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeSubject completes the argument with the addresses and pods of leases.
func (a *app) completeSubject(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var words []string
	if len(args) == 0 {
		_ = a.view(cmd.Context(), func(tx *store.Tx) error {
			tx.All(func(l lease.Lease, err error) bool {
				if err == nil {
					words = append(words, l.Address.String())
				}
				if err == nil && l.Name != "" {
					words = append(words, l.Namespace+"/"+l.Name)
				}
				return true
			})
			return nil
		})
	}
	return words, cobra.ShellCompDirectiveNoFileComp
}
