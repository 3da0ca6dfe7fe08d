package persistentpodstate

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// Feature is the part of the manager that serves PersistentPodStates.
type Feature struct {
	kinds kindList
	// keepGone reports whether a pod that requires the hostname of a node waits for that node also
	// when the node is gone from the cluster.
	keepGone bool
	// goneGrace is how long a node that was removed from the cluster counts as present.
	goneGrace time.Duration
}

// New defines the flags --pps-* on f. The fields of the Feature have the values of the flags after
// f was parsed.
func New(f *pflag.FlagSet) *Feature {
	p := &Feature{kinds: builtIn}
	f.Func("pps-kinds",
		"comma-separated `group/version/Kind`s, beside StatefulSets, whose pods a PersistentPodState may be about",
		func(s string) (err error) { p.kinds, err = parseKinds(s); return err })
	f.BoolVar(&p.keepGone, "pps-keep-gone", false,
		"have a pod whose hostname is required wait for its node also when the node is gone from the cluster")
	f.DurationVar(&p.goneGrace, "pps-gone-grace", 3*time.Minute,
		"how long a node must be gone from the cluster before pods whose hostname is required may run elsewhere")
	return p
}

// Validate returns an error if a flag has a value that is not accepted.
func (p *Feature) Validate() error {
	if p.goneGrace < 0 {
		return fmt.Errorf("--pps-gone-grace %s: want a duration from 0s on", p.goneGrace)
	}
	return nil
}

// Setup adds the webhooks and controllers to a manager that has not started. The manager's cache
// must contain the labels of nodes and the manager's Secret. namespace is the namespace of the
// manager's Service and Secret.
func (p *Feature) Setup(ctx context.Context, mgr manager.Manager, namespace string) error {
	if err := pps.AddToScheme(mgr.GetScheme()); err != nil {
		return err
	}
	log := mgr.GetLogger().WithName("persistentpodstate")
	v, err := newView(ctx, mgr, p.kinds, p.goneGrace)
	if err != nil {
		return err
	}
	if err := mgr.Add(v); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("persistentpodstate", v.Ready); err != nil {
		return err
	}
	pods := p.podWebhook(v, log)
	server := mgr.GetWebhookServer()
	server.Register(podsPath, &webhook.Admission{Handler: pods.handler()})
	server.Register(normalizePath, &webhook.Admission{Handler: normalizer{}})
	server.Register(validatePath, &webhook.Admission{Handler: &validator{view: v, kinds: p.kinds}})

	r := &role{}
	events := mgr.GetEventRecorder("leasehold-manager")
	for _, c := range []interface{ setup(manager.Manager) error }{
		&installer{view: v, kinds: p.kinds, namespace: namespace, client: mgr.GetClient(), live: mgr.GetAPIReader(),
			role: r, events: events, log: log},
		p.recorder(mgr, v, r, events, log),
		&generator{view: v, client: mgr.GetClient(), live: mgr.GetAPIReader(), role: r, events: events},
	} {
		if err := c.setup(mgr); err != nil {
			return fmt.Errorf("PersistentPodState: %w", err)
		}
	}
	return nil
}

func (p *Feature) podWebhook(v *clusterView, log logr.Logger) *podWebhook {
	return &podWebhook{view: v, releaseGone: !p.keepGone, grace: p.goneGrace, log: log}
}

func (p *Feature) recorder(mgr manager.Manager, v *clusterView, r *role, events ctrlrecorder.EventRecorder,
	log logr.Logger) *recorder {
	return &recorder{view: v, client: mgr.GetClient(), live: mgr.GetAPIReader(), role: r, releaseGone: !p.keepGone,
		grace: p.goneGrace, events: events, log: log}
}
