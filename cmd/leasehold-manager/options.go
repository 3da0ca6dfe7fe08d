package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/manager/persistentpodstate"
	"github.com/leasehold-cni/leasehold/pkg/manager/pin"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Exit codes.
const (
	exitFailed = 1 // it could not start, or failed; standard error has the reason
	exitUsage  = 2 // invalid arguments or flags
)

// options are the command line, checked.
type options struct {
	kubeconfig string
	namespace  string

	pin pin.Options
	// addPersistentPodState adds what serves PersistentPodStates to a manager.
	addPersistentPodState func(manager.Manager, *control.Nodes) error

	webhookPort int
	webhookCA   string
	metricsAddr string
	healthAddr  string
	pprofAddr   string
	certDir     string
	logLevel    slog.Level
	logJSON     bool
	logTo       io.Writer
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

func newCommand(run func(context.Context, options, string) error) *cobra.Command {
	var o options
	c := &cobra.Command{Use: "leasehold-manager",
		Short: "Bring recreated pods back to the nodes that have their addresses",
		Long: `leasehold-manager pins recreated pods to the nodes that have their addresses, and
serves PersistentPodState. Several replicas may run.`,
		Version: env.Version(version), Args: noArguments, SilenceUsage: true, SilenceErrors: true}
	c.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	c.RunE = func(c *cobra.Command, _ []string) error {
		o.logTo = c.ErrOrStderr()
		if err := run(c.Context(), o, c.Version); err != nil {
			return failure{err}
		}
		return nil
	}
	c.CompletionOptions.DisableDefaultCmd = true
	o.addFlags(c.Flags())
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
	f.StringVar(&o.namespace, "namespace", kube.Namespace, "where the manager's Secret, Service and Lease are")
	o.pin = pin.Options{Mode: policy.PinRequire, Schedulers: []string{"default-scheduler"}, Kinds: []schema.GroupKind{
		{Group: "core.strimzi.io", Kind: "StrimziPodSet"}, {Group: "postgresql.cnpg.io", Kind: "Cluster"}}}
	f.Func("pin-mode", "the `mode` of pods for which neither annotation nor namespace says one (default require)",
		func(s string) (err error) { o.pin.Mode, err = policy.ParsePinMode(s); return err })
	f.Func("schedulers", "comma-separated `names` of schedulers that respect node affinity (default default-scheduler)",
		func(s string) error { o.pin.Schedulers = strings.Split(s, ","); return nil })
	f.Func("pin-kinds", "comma-separated `kinds` of controllers that create a deleted pod again at once, beside those "+
		"of Kubernetes and Kruise (default StrimziPodSet.core.strimzi.io,Cluster.postgresql.cnpg.io)",
		func(s string) error {
			o.pin.Kinds = nil
			for kind := range strings.SplitSeq(s, ",") {
				o.pin.Kinds = append(o.pin.Kinds, schema.ParseGroupKind(kind))
			}
			return nil
		})
	o.addPersistentPodState = persistentpodstate.New(f).Setup
	f.IntVar(&o.webhookPort, "webhook-port", 9443, "where the webhooks are served")
	f.StringVar(&o.webhookCA, "webhook-client-ca", "",
		"a `file` with the CA of the API server's client certificate; without one the webhooks answer any client")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":9471", "where metrics are served")
	f.StringVar(&o.healthAddr, "health-addr", ":9472", "where /healthz and /readyz are served")
	f.StringVar(&o.pprofAddr, "pprof-addr", "", "where profiles are served; empty for nowhere")
	f.StringVar(&o.certDir, "cert-dir", "/tmp", "a writable folder")
	f.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	f.Func("log-format", "text or json (default text)", func(s string) error {
		if s != "text" && s != "json" {
			return fmt.Errorf(`want "text" or "json"`)
		}
		o.logJSON = s == "json"
		return nil
	})
}
