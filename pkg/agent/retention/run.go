package retention

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	minInterval = 100 * time.Millisecond
	retry       = 5 * time.Second
)

// Windows is the task that sets the windows of a node's leases, extends the holds of starting pods,
// ends the holds that belong to a deleted namespace or pod, and copies the limits of namespaces to
// the store.
type Windows struct {
	Service *ipam.Service
	Pods    *Pods
	Core    rest.Interface // to read namespaces
	Limits  *Limits
	Log     *slog.Logger
	// Invalid is called for every pod with an invalid annotation, in each pass.
	Invalid func(Pod)

	namespaces namespaces
	former     map[kube.Name]Pod // of the last pass that marked the leases of leaving pods

	invalid daemon.Problem // of the limits
}

// Run applies the windows until ctx is done. It makes a pass after every change of the pods or the
// limits, and after changes, which is sent when the store has changed. It returns ctx.Err().
func (w *Windows) Run(ctx context.Context, changes *daemon.Signal) error {
	return daemon.Loop(ctx, minInterval, daemon.Any(changes, &w.Pods.Changes, &w.Limits.Changes), w.pass)
}

// pass reads the pods and their leases, and makes the changes of the plan. It returns the time
// until the next pass, or 0 if no pass is necessary before the next change.
func (w *Windows) pass(ctx context.Context) (requeueAfter time.Duration) {
	pods, synced := w.Pods.Views()
	if !synced {
		return 0 // the pods have not been listed yet
	}
	bootID := w.Service.Node.Clock().BootID
	view, err := w.Service.List(ctx, func(l lease.Lease) bool {
		_, here := pods[kube.Name{Namespace: l.Namespace, Name: l.Name}]
		return here || l.Reservation != "" || l.IsBootHold(bootID)
	})
	if err != nil && !store.IsEmpty(err) {
		w.Log.Warn("reading the leases failed, windows not updated", "error", err)
		return retry
	}
	if err := w.copyLimits(ctx, view.Limits); err != nil {
		w.Log.Warn("storing the limits of namespaces failed", "error", err)
		return retry
	}
	if err != nil {
		return 0 // there are no leases
	}
	// First of all, because the ADD of a new pod finds its name and should find who leaves.
	if err := w.Service.MarkLeaving(ctx, leaving(pods, w.former, view.Leases)); err != nil {
		w.Log.Warn("marking the leases of deleted pods failed", "error", err)
		return retry
	}
	w.former = pods
	if w.namespaces == nil || len(w.namespaces) >= maxOwners {
		w.namespaces = namespaces{}
	}
	// An error is handled after the plan is executed, because the plan is correct without the
	// namespaces that were not read.
	unread := w.namespaces.read(ctx, w.Core, pods, leasesFor(pods, view.Leases))
	plan := makePlan(pods, view, w.namespaces)
	for _, p := range pods {
		if p.Invalid != "" {
			w.Invalid(p)
		}
	}
	if err := w.act(ctx, plan); err != nil {
		w.Log.Warn("updating windows failed", "error", err)
		return retry
	}
	if unread != nil {
		w.Log.Debug("reading a namespace failed", "error", unread)
		return retry
	}
	return plan.RequeueAfter
}

// act makes the changes of the plan in the store. It stops at the first error.
func (w *Windows) act(ctx context.Context, plan plan) error {
	for reason, holds := range plan.End {
		if err := End(ctx, w.Service.EndHolds, w.Log, holds, reason); err != nil {
			return err
		}
	}
	if err := w.Service.NamePods(ctx, plan.Name); err != nil {
		return err
	}
	for _, p := range plan.Follow {
		w.Log.Info("setting the window of a pod", "pod", p.Namespace+"/"+p.Name, "window", p.Window.String(),
			"reservation", p.Reservation)
	}
	if err := w.Service.Follow(ctx, plan.Follow); err != nil {
		return err
	}
	var holds []ipam.Ref
	for ref, l := range plan.Expect {
		w.Log.Info("extending a hold, a pod that needs it is starting", "address", l.Address.String(),
			"pod", l.Namespace+"/"+l.Name, "reservation", l.Reservation)
		holds = append(holds, ref)
	}
	return w.Service.Defer(ctx, holds, deferTo)
}

// End ends the retention of leases for a reason, of those of one pod together, and logs it. with is
// ipam.Service.EndHolds, or RevokePods for bound leases as well.
func End(ctx context.Context, with func(context.Context, [][]ipam.Ref, string) error, log *slog.Logger,
	leases []lease.Lease, reason string) error {
	var pods [][]ipam.Ref
	for _, leases := range ByPod(leases) {
		var refs []ipam.Ref
		for _, l := range leases {
			refs = append(refs, ipam.RefTo(l))
		}
		pods = append(pods, refs)
	}
	if err := with(ctx, pods, reason); err != nil {
		return err
	}
	for _, l := range leases {
		log.Info("retention ended", "address", l.Address.String(), "pod", l.Namespace+"/"+l.Name, "lease", l.ID,
			"reason", reason)
	}
	return nil
}
