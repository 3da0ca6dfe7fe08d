package topology

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// Options are what the manager's command line says of PersistentPodStates.
type Options struct {
	Kinds     Kinds
	Namespace string // of the manager's Service and Secret
	// KeepGone has pods wait for a node that is gone, where its hostname is required.
	KeepGone bool
	// GoneGrace is how long a node that has left the cluster counts as there.
	GoneGrace time.Duration
}

// Setup adds the webhooks and the controllers to a manager, whose cache has the nodes' labels and the manager's Secret.
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
	b := &binder{view: v, release: !o.KeepGone, grace: o.GoneGrace, log: log}
	server := mgr.GetWebhookServer()
	server.Register(podsPath, &webhook.Admission{Handler: b.handler()})
	server.Register(normalizePath, &webhook.Admission{Handler: normalizer{}})
	server.Register(validatePath, &webhook.Admission{Handler: &validator{view: v, kinds: o.Kinds}})

	s := &stance{}
	events := mgr.GetEventRecorder("leasehold-manager")
	for _, room := range []interface{ setup(manager.Manager) error }{
		&keeper{view: v, kinds: o.Kinds, namespace: o.Namespace, client: mgr.GetClient(), live: mgr.GetAPIReader(), stance: s, events: events, log: log},
		&recorder{view: v, client: mgr.GetClient(), stance: s, release: !o.KeepGone, grace: o.GoneGrace, events: events, log: log},
		&generator{view: v, client: mgr.GetClient(), stance: s, events: events},
	} {
		if err := room.setup(mgr); err != nil {
			return fmt.Errorf("PersistentPodState: %w", err)
		}
	}
	return nil
}
