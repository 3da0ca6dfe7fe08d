package persistentpodstate

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// Options are the settings for PersistentPodStates.
type Options struct {
	Kinds     Kinds
	Namespace string // of the manager's Service and Secret
	// KeepGone makes pods wait for a node that is gone, if its hostname is required.
	KeepGone bool
	// GoneGrace is how long a node that was removed from the cluster counts as present.
	GoneGrace time.Duration
}

// Setup adds the webhooks and controllers to a manager. Its cache must contain the labels of nodes
// and the manager's Secret.
func Setup(ctx context.Context, mgr manager.Manager, o Options) error {
	log := mgr.GetLogger().WithName("persistentpodstate")
	v, err := newView(ctx, mgr, o.Kinds, o.GoneGrace)
	if err != nil {
		return err
	}
	if err := mgr.Add(v); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("persistentpodstate", v.Ready); err != nil {
		return err
	}
	pods := &podWebhook{view: v, releaseGone: !o.KeepGone, grace: o.GoneGrace, log: log}
	server := mgr.GetWebhookServer()
	server.Register(podsPath, &webhook.Admission{Handler: pods.handler()})
	server.Register(normalizePath, &webhook.Admission{Handler: normalizer{}})
	server.Register(validatePath, &webhook.Admission{Handler: &validator{view: v, kinds: o.Kinds}})

	r := &role{}
	events := mgr.GetEventRecorder("leasehold-manager")
	for _, c := range []interface{ setup(manager.Manager) error }{
		&installer{view: v, kinds: o.Kinds, namespace: o.Namespace, client: mgr.GetClient(), live: mgr.GetAPIReader(),
			role: r, events: events, log: log},
		&recorder{view: v, client: mgr.GetClient(), role: r, releaseGone: !o.KeepGone, grace: o.GoneGrace,
			events: events, log: log},
		&generator{view: v, client: mgr.GetClient(), role: r, events: events},
	} {
		if err := c.setup(mgr); err != nil {
			return fmt.Errorf("PersistentPodState: %w", err)
		}
	}
	return nil
}
