// Package windows copies windows, reservation names and limits to the store, and extends holds of
// starting pods. The windows are those in annotations of the node's pods: how long the address of a
// deleted pod is held for a pod of the same name. The package also ends holds of deleted
// namespaces, and those that a boot began for pods that do not exist any more. The plugin reads the
// annotation from the CNI request if the runtime passes it. This package is for runtimes and
// configurations that do not pass it, such as the default configuration of flannel, and for an
// annotation that is changed while the pod runs.
package windows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	minInterval = 100 * time.Millisecond
	retry       = 5 * time.Second
)

// Task is the task that sets the windows of a node's leases, extends the holds of starting pods,
// ends the holds that belong to a deleted namespace or pod, and copies the limits of namespaces to
// the store.
type Task struct {
	*retention.Node
	// Invalid is called for every pod with an invalid annotation, in each pass.
	Invalid func(retention.Pod)
	Problem daemon.Problem

	namespaces namespaces
	former     map[kube.Name]retention.Pod // of the last pass that marked the leases of leaving pods

	invalid daemon.Problem // of the limits
}

// Run applies the windows until ctx is done. It makes a pass after every change of the pods or the
// limits, and when the store has changed. It returns ctx.Err().
func (w *Task) Run(ctx context.Context) error {
	return daemon.Loop(ctx, minInterval, daemon.Any(w.Changes, &w.Pods.Changes, &w.Limits.Changes), w.pass)
}

// pass makes the changes that are due, and logs what failed. It returns the time until the next
// pass, or 0 if no pass is necessary before the next change.
func (w *Task) pass(ctx context.Context) (requeueAfter time.Duration) {
	requeueAfter, err := w.apply(ctx)
	if ctx.Err() != nil {
		return 0
	}
	w.Problem.Log(w.Log, slog.LevelWarn, "updating windows", err)
	if err != nil {
		return retry
	}
	return requeueAfter
}

// apply reads the pods and their leases, and makes the changes of the plan. What fails keeps
// nothing else from being changed.
func (w *Task) apply(ctx context.Context) (requeueAfter time.Duration, err error) {
	pods, synced := w.Pods.Views()
	if !synced {
		return 0, nil // the pods have not been listed yet
	}
	bootID := w.Service.Node.Clock().BootID
	view, err := w.Service.List(ctx, func(l lease.Lease) bool {
		_, here := pods[kube.Name{Namespace: l.Namespace, Name: l.Name}]
		return here || l.ReserveAs != "" || l.IsBootHold(bootID)
	})
	if err != nil {
		return 0, fmt.Errorf("reading the leases: %w", err)
	}
	limitErr := w.copyLimits(ctx, view.Limits)
	if view.NamedPods == nil {
		return 0, limitErr // the store was never used
	}
	// A pod that cannot be decoded is not in pods, and may be one of those before.
	former, isComplete := w.former, w.Pods.IsComplete()
	if !isComplete {
		former = pods
	}
	// First of all, because the ADD of a new pod finds its name and should find who leaves.
	markErr := w.Service.MarkLeaving(ctx, leaving(pods, former, view.Leases))
	if markErr == nil {
		w.former = pods
	}
	if w.namespaces == nil || len(w.namespaces) >= maxOwners {
		w.namespaces = namespaces{}
	}
	// An error is handled after the plan is executed, because the plan is correct without the
	// namespaces that were not read.
	unread := w.namespaces.read(ctx, w.Clients.Core, pods, leasesFor(pods, view.Leases))
	plan := makePlan(pods, view, w.namespaces)
	if !isComplete {
		delete(plan.End, podGone)
	}
	for _, p := range pods {
		if p.Invalid != "" {
			w.Invalid(p)
		}
	}
	if unread != nil {
		w.Log.Debug("reading a namespace failed", "error", unread)
		plan.RequeueAfter = retry
	}
	return plan.RequeueAfter, errors.Join(limitErr, markErr, w.act(ctx, plan))
}

// act makes the changes of the plan in the store. What fails keeps nothing else from being done.
func (w *Task) act(ctx context.Context, plan plan) error {
	var errs []error
	for reason, holds := range plan.End {
		errs = append(errs, retention.End(ctx, w.Service.EndHolds, w.Log, holds, reason))
	}
	errs = append(errs, w.Service.NamePods(ctx, plan.Name))
	followed, err := w.Service.Follow(ctx, plan.Follow)
	for _, p := range followed {
		w.Log.Info("window of a pod set", "pod", p.Namespace+"/"+p.Name, "window", p.Window.String(),
			"reserveAs", p.ReserveAs)
	}
	errs = append(errs, err)
	extended, err := w.Service.Defer(ctx, slices.Collect(maps.Keys(plan.Expect)), deferTo)
	for _, ref := range extended {
		l := plan.Expect[ref]
		w.Log.Info("hold extended, a pod that needs it is starting", "address", l.Address.String(),
			"pod", l.Namespace+"/"+l.Name, "reserveAs", l.ReserveAs)
	}
	return errors.Join(append(errs, err)...)
}

// copyLimits copies the limits to the store, from which the plugin reads them, if they are not the
// stored ones. Limits that are not known or invalid leave the stored ones in effect.
func (w *Task) copyLimits(ctx context.Context, stored policy.Limits) error {
	if !w.Limits.HasSynced() || !w.Limits.IsComplete() {
		return nil
	}
	limits, _ := w.Limits.Get(kube.LimitsName.String())
	err := limits.Validate()
	if err != nil {
		err = fmt.Errorf("ConfigMap %s: %w; the former limits stay in effect", kube.LimitsName, err)
	}
	w.invalid.Log(w.Log, slog.LevelWarn, "applying the limits of namespaces", err)
	if err != nil || maps.Equal(limits, stored) {
		return nil
	}
	if err := w.Service.SetLimits(ctx, limits); err != nil {
		return fmt.Errorf("storing the limits of namespaces: %w", err)
	}
	return nil
}
