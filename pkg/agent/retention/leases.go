package retention

import (
	"context"
	"log/slog"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

// ByPod groups leases by the pod that they belong to. It omits leases without a key
// (lease.Lease.Key).
func ByPod(leases []lease.Lease) map[kube.Name][]lease.Lease {
	out := map[kube.Name][]lease.Lease{}
	for _, l := range leases {
		if !l.Key().IsZero() {
			n := kube.Name{Namespace: l.Namespace, Name: l.Name}
			out[n] = append(out[n], l)
		}
	}
	return out
}

// End ends the retention of leases for a reason, of those of one pod together, and logs what has
// ended. with is maintain.Service.EndHolds, or RevokePods for bound leases as well.
func End(ctx context.Context,
	with func(context.Context, [][]maintain.Ref, string) ([]maintain.Ref, error), log *slog.Logger,
	leases []lease.Lease, reason string) error {
	var pods [][]maintain.Ref
	for _, leases := range ByPod(leases) {
		var refs []maintain.Ref
		for _, l := range leases {
			refs = append(refs, maintain.RefTo(l))
		}
		pods = append(pods, refs)
	}
	ended, err := with(ctx, pods, reason)
	for _, l := range leases {
		if slices.Contains(ended, maintain.RefTo(l)) {
			log.Info("retention ended", "address", l.Address.String(), "pod", l.Namespace+"/"+l.Name, "lease", l.ID,
				"reason", reason)
		}
	}
	return err
}
