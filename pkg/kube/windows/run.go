package windows

import (
	"context"
	"log/slog"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	pace  = 100 * time.Millisecond
	retry = 5 * time.Second
)

// Windows is the task.
type Windows struct {
	Service *ipam.Service
	Pods    *nodepods.Pods
	Log     *slog.Logger
	// Invalid is told of every pod whose annotation is no window, as often as it is seen.
	Invalid func(nodepods.Pod, error)
}

// Run follows the pods until ctx is done. changes brings a word when the store has changed.
func (w *Windows) Run(ctx context.Context, changes <-chan struct{}) error {
	return live.Loop(ctx, pace, live.Any(ctx, changes, w.Pods.Changes()), w.pass)
}

// pass looks, plans and acts.
func (w *Windows) pass(ctx context.Context) (again time.Duration) {
	pods, synced := w.Pods.Rows()
	if !synced {
		return 0 // nothing is known of any pod
	}
	view, err := w.Service.Look(ctx, func(l lease.Lease) bool {
		_, here := pods[live.Name{Namespace: l.Namespace, Name: l.Name}]
		return here
	})
	if store.IsEmpty(err) {
		return 0
	}
	if err != nil {
		w.Log.Warn("the windows of this node's pods wait", "error", err)
		return retry
	}
	plan := Make(pods, view)
	for name, err := range plan.Invalid {
		w.Invalid(pods[name], err)
	}
	if err := w.act(ctx, plan); err != nil {
		w.Log.Warn("the windows of this node's pods wait", "error", err)
		return retry
	}
	return plan.Again
}

func (w *Windows) act(ctx context.Context, plan Plan) error {
	for _, p := range plan.Follow {
		w.Log.Info("a pod's window is set", "pod", p.Namespace+"/"+p.Name, "window", Text(p.Window))
	}
	if err := w.Service.Follow(ctx, plan.Follow); err != nil {
		return err
	}
	for _, p := range plan.Expect {
		w.Log.Info("a hold waits on for its pod", "pod", p.Namespace+"/"+p.Name)
	}
	return w.Service.Defer(ctx, plan.Expect, DeferTo)
}
