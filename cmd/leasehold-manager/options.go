package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/manager/persistentpodstate"
	"github.com/leasehold-cni/leasehold/pkg/manager/pin"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Exit codes.
const (
	exitFailed = 1 // it could not start, or failed; standard error has the reason
	exitUsage  = 2 // invalid arguments or flags
)

// feature is a part of the manager beside the pin, with flags of its own.
type feature interface {
	// Validate checks the values of the flags.
	Validate() error
	// Setup adds webhooks and controllers to a manager in that namespace.
	Setup(ctx context.Context, mgr manager.Manager, namespace string) error
}

// features defines the features' flags. Without its line here a package is not part of the manager.
func features(f *pflag.FlagSet) []feature {
	return []feature{
		persistentpodstate.New(f),
	}
}

// options are the command line, checked.
type options struct {
	kubeconfig string
	namespace  string

	pin      pin.Options
	features []feature

	webhookPort   int
	webhookCA     string
	metricsAddr   string
	secureMetrics bool
	healthAddr    string
	pprofAddr     string
	leaderElect   bool
	certDir       string
	logLevel      slog.Level
	logJSON       bool
	logTo         io.Writer
	liftGatesOnly bool // the subcommand lift-gates
	version       bool
}

// failure is an error of the manager itself. All other errors of the command are about its
// arguments and flags.
type failure struct{ error }

// execute runs the program and returns its exit code. run is the manager.
func execute(ctx context.Context, run func(context.Context, options, string) error, args []string,
	stdout, stderr io.Writer) int {
	c := newCommand(run)
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	err := c.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failure{}):
		fmt.Fprintf(stderr, "%s: %v\n", c.Name(), err)
		return exitFailed
	}
	fmt.Fprintf(stderr, "%s: %v\nTry '%s --help'.\n", c.Name(), err, c.Name())
	return exitUsage
}

// newCommand returns the command of the manager with its subcommand lift-gates. Both have the same
// flags.
func newCommand(run func(context.Context, options, string) error) *cobra.Command {
	var o options
	command := func(use, short, long string) *cobra.Command {
		c := &cobra.Command{Use: use, Short: short, Long: long, Args: noArguments,
			SilenceUsage: true, SilenceErrors: true}
		c.RunE = func(c *cobra.Command, _ []string) error {
			o.logTo, o.liftGatesOnly = c.ErrOrStderr(), c.HasParent()
			if o.version {
				fmt.Fprintln(c.OutOrStdout(), c.Root().Name(), env.Version(version))
				return nil
			}
			if err := o.validate(); err != nil {
				return err
			}
			if err := run(c.Context(), o, env.Version(version)); err != nil {
				return failure{err}
			}
			return nil
		}
		return c
	}
	c := command("leasehold-manager", "Bring recreated pods back to the nodes that have their addresses",
		`leasehold-manager pins recreated pods to the nodes that have their addresses, and
serves PersistentPodState. Several replicas may run.`)
	c.CompletionOptions.DisableDefaultCmd = true
	c.Flags().SortFlags = false
	o.addFlags(c.PersistentFlags())
	c.AddCommand(command("lift-gates", "Lift the gates of all waiting pods, once the webhook is gone",
		`Lift leasehold's scheduling gates of all pods that wait. Run it if the managers were
lost after their webhook configuration was deleted: no program lifts the gates then.`))
	return c
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// addFlags sets the defaults and adds the flags that change the options.
func (o *options) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server; in a pod, its service account")
	f.StringVar(&o.namespace, "namespace", wellknown.Namespace, "where the manager's Secret, Service and Lease are")
	o.pin = pin.Options{Mode: policy.PinNominate, Fallback: policy.PinPrefer, Schedulers: []string{"default-scheduler"}}
	pinModeVar(f, &o.pin.Mode, "pin-mode", "the `mode` of pods for which neither annotation nor namespace says one")
	pinModeVar(f, &o.pin.Fallback, "fallback-pin-mode",
		"the `mode` in place of nominate for schedulers that are not known to honour it")
	f.Func("schedulers", "comma-separated `names` of schedulers that honour a nomination (default default-scheduler)",
		func(s string) error { o.pin.Schedulers = strings.Split(s, ","); return nil })
	f.DurationVar(&o.pin.RequireTimeout, "require-timeout", 5*time.Minute,
		"how long a pod in the mode require may be unschedulable before it is evicted, to run elsewhere")
	o.features = features(f)
	f.IntVar(&o.webhookPort, "webhook-port", 9443, "where the webhooks are served")
	f.StringVar(&o.webhookCA, "webhook-client-ca", "",
		"a `file` with the CA of the API server's client certificate; without one the webhooks answer any client")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":9471", "where metrics are served")
	f.BoolVar(&o.secureMetrics, "metrics-secure", false, "serve metrics over HTTPS, only to clients with a token "+
		"whose user the API server allows to get /metrics")
	f.StringVar(&o.healthAddr, "health-addr", ":9472", "where /healthz and /readyz are served")
	f.StringVar(&o.pprofAddr, "pprof-addr", "", "where profiles are served; empty for nowhere")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "share the work that only one replica may do")
	f.StringVar(&o.certDir, "cert-dir", "/tmp", "a writable folder")
	f.BoolVar(&o.version, "version", false, "print the version")
	f.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	f.Func("log-format", "text or json (default text)", func(s string) error {
		if s != "text" && s != "json" {
			return fmt.Errorf(`want "text" or "json"`)
		}
		o.logJSON = s == "json"
		return nil
	})
}

func (o *options) validate() error {
	if o.pin.Fallback == policy.PinNominate {
		return fmt.Errorf("--fallback-pin-mode replaces nominate; want require, prefer or none")
	}
	if o.pin.RequireTimeout < 0 {
		return fmt.Errorf("--require-timeout %s is negative; want at least 0s", o.pin.RequireTimeout)
	}
	for _, part := range o.features {
		if err := part.Validate(); err != nil {
			return err
		}
	}
	return nil
}

func pinModeVar(f *pflag.FlagSet, mode *policy.PinMode, name, usage string) {
	f.Func(name, fmt.Sprintf("%s (default %s)", usage, *mode), func(s string) (err error) {
		*mode, err = policy.ParsePinMode(s)
		return err
	})
}
