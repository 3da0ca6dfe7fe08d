package main

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/manager/persistentpodstate"
	"github.com/leasehold-cni/leasehold/pkg/manager/pin"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// options are the command line, checked.
type options struct {
	kubeconfig string

	pin                pin.Options
	persistentPodState *persistentpodstate.Feature

	webhookPort int
	webhookCA   string
	metricsAddr string
	pprofAddr   string
	certDir     string
}

// execute runs the program and returns its exit code. run is the manager.
func execute(ctx context.Context, run func(context.Context, options, *slog.Logger) error, args []string,
	stdout, stderr io.Writer) int {
	var o options
	c := &cobra.Command{Use: "leasehold-manager",
		Short: "Bring recreated pods back to the nodes that have their addresses",
		Long: `leasehold-manager pins recreated pods to the nodes that have their addresses, and
serves PersistentPodState. Several replicas may run.`,
		Version: version}
	o.addFlags(c.Flags())
	return daemon.Execute(ctx, c, func(ctx context.Context, log *slog.Logger) error { return run(ctx, o, log) }, args,
		stdout, stderr)
}

// addFlags sets the defaults and adds the flags that change the options.
func (o *options) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "how to reach the API server; in a pod, its service account")
	o.pin = pin.Options{Mode: policy.PinRequire, Schedulers: []string{"default-scheduler"}, Kinds: []schema.GroupKind{
		{Group: "core.strimzi.io", Kind: "StrimziPodSet"}, {Group: "postgresql.cnpg.io", Kind: "Cluster"}}}
	f.Func("pin-mode", "the `mode` of pods for which neither annotation nor namespace says one (default require)",
		func(s string) (err error) { o.pin.Mode, err = policy.ParsePinMode(s); return err })
	f.Func("schedulers", "comma-separated `names` of schedulers that respect node affinity (default default-scheduler)",
		func(s string) error { o.pin.Schedulers = split(s); return nil })
	f.Func("pin-kinds", "comma-separated `kinds` of controllers that create a deleted pod again at once, beside those "+
		"of Kubernetes and Kruise (default StrimziPodSet.core.strimzi.io,Cluster.postgresql.cnpg.io)",
		func(s string) error {
			o.pin.Kinds = nil
			for _, kind := range split(s) {
				o.pin.Kinds = append(o.pin.Kinds, schema.ParseGroupKind(kind))
			}
			return nil
		})
	o.persistentPodState = persistentpodstate.New(f)
	f.IntVar(&o.webhookPort, "webhook-port", 9443, "where the webhooks are served")
	f.StringVar(&o.webhookCA, "webhook-client-ca", "",
		"a `file` with the CA of the API server's client certificate; without one the webhooks answer any client")
	f.StringVar(&o.metricsAddr, "metrics-addr", ":9471", "address of /metrics, /healthz and /readyz")
	f.StringVar(&o.pprofAddr, "pprof-addr", "", "where profiles are served; empty for nowhere")
	f.StringVar(&o.certDir, "cert-dir", "/tmp", "a writable folder")
}

// split splits the value of a flag at commas and spaces. An empty value has no element.
func split(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}
