package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/spf13/cobra"
)

// Exit codes of leasectl.
const (
	exitOK       = 0
	exitProblems = 1 // a check found problems, or the command failed
	ExitUsage    = 2 // invalid arguments or flags

	exitUnchecked = 2 // of doctor: nothing was found, but something could not be checked
)

// ErrProblems is returned by commands that have already printed the problems. Run prints nothing
// for it.
var ErrProblems = errors.New("problems found")

// errUsage marks errors in the arguments and flags of the user.
var errUsage = errors.New("usage")

// Usage returns an error about the arguments or flags of the user.
func Usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
}

// Env is the environment in which the commands run.
type Env struct {
	Stdout, Stderr io.Writer
	Clock          func() lease.Instant // returns the current time without the boot ID
	Version        string
}

// App has the environment of a program, and the values of the flags that several commands have.
type App struct {
	Env
	Filter
	Output  string // of the flag --output: "", table or json
	Yes     bool   // of the flag --yes
	program string // as users call it
}

// New returns the App of a program.
func New(env Env) *App {
	env.Stdout, env.Stderr = plain{env.Stdout}, plain{env.Stderr}
	return &App{Env: env}
}

// Run executes one command line of the command tree root, and returns the exit code. hint returns
// what to add to the text of an error.
func (a *App) Run(ctx context.Context, root *cobra.Command, args []string, hint func(error) string) int {
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SilenceUsage, root.SilenceErrors, root.Version = true, true, a.Version
	root.SetArgs(args)
	a.program = root.DisplayName()
	command, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, ErrProblems):
		return exitProblems
	case errors.Is(err, errUnchecked):
		return exitUnchecked
	case errors.Is(err, errUsage), isCobraUsage(err):
		fmt.Fprintf(a.Stderr, "%s: %s\nTry '%s --help'.\n", a.program, strings.TrimPrefix(err.Error(), "usage: "),
			command.CommandPath())
		return ExitUsage
	}
	fmt.Fprintf(a.Stderr, "%s: %v%s\n", a.program, err, hint(err))
	return exitProblems
}

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

// OutputFlag adds the flag --output to a command.
func (a *App) OutputFlag(c *cobra.Command) {
	c.Flags().FuncP("output", "o", "output `format`: table or json (default table)", OneOf(&a.Output, "table", "json"))
}

// YesFlag adds the flag --yes to a command, with which Ask does not ask.
func (a *App) YesFlag(c *cobra.Command) { c.Flags().BoolVar(&a.Yes, "yes", false, "do not ask") }

// ReserveAsFlag adds the flag --reserve-as to a command, which selects leases.
func (a *App) ReserveAsFlag(c *cobra.Command) {
	c.Flags().Func("reserve-as",
		"only the leases of this reservation `name` (annotation leasehold.dev/reserve-as), or of namespace/name",
		func(s string) error {
			if a.ReserveAs = s; strings.Count(s, "/") > 1 || strings.HasPrefix(s, "/") || strings.HasSuffix(s, "/") {
				return errors.New("want name or namespace/name")
			}
			return nil
		})
}

// OneOf returns what sets a flag that has one of two values. With an empty value, which scripts may
// have, it counts as not given.
func OneOf(to *string, first, second string) func(string) error {
	return func(s string) error {
		if *to = s; s != "" && s != first && s != second {
			return fmt.Errorf("want %s or %s", first, second)
		}
		return nil
	}
}

// Filter selects leases, journal entries and reservations. Fields that are "" select all.
type Filter struct {
	address   string // from the argument
	pod       string // as namespace/name: from the argument
	ReserveAs string // a reservation name, or a namespace and one
}

// Parse sets the filter of the argument of list, history and release, if there is one: an address,
// or a pod as namespace/name.
func (f *Filter) Parse(command *cobra.Command, args []string) error {
	if err := cobra.MaximumNArgs(1)(command, args); err != nil {
		return err
	}
	for _, s := range args {
		if addr, err := netip.ParseAddr(s); err == nil {
			f.address = addr.Unmap().String()
		} else if ns, name, ok := strings.Cut(s, "/"); ok && ns != "" && name != "" && !strings.Contains(name, "/") {
			f.pod = s
		} else {
			return Usage("%q is neither an IP address nor namespace/pod", s)
		}
	}
	return nil
}

// InNamespace returns the namespace of what the filter selects, "" if it may be in any.
func (f Filter) InNamespace() string {
	for _, name := range []string{f.pod, f.ReserveAs} {
		if namespace, _, isNamed := strings.Cut(name, "/"); isNamed {
			return namespace
		}
	}
	return ""
}

// Selects reports whether the filter selects something of a pod with these addresses.
func (f Filter) Selects(namespace, pod, reserveAs string, addresses ...string) bool {
	return (f.address == "" || slices.Contains(addresses, f.address)) &&
		(f.pod == "" || f.pod == namespace+"/"+pod) &&
		(f.ReserveAs == "" || reserveAs != "" &&
			(f.ReserveAs == reserveAs || f.ReserveAs == namespace+"/"+reserveAs))
}
