package agent

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/pkg/announce"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
)

// Announce is the task that tells neighbours where the pods are that came back
// to their addresses. What it sees of their hardware addresses goes to their
// leases.
func Announce(node Node, host *sandbox.Host) Task {
	announced := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "leasehold_announcements_total",
		Help: "Addresses that came back and were announced to their neighbours.",
	})
	node.Metrics.MustRegister(announced)
	a := announce.Announcer{
		Dir: node.Service.Store.AnnounceDir(),
		Bound: func(ctx context.Context, who lease.Holder) ([]lease.Lease, error) {
			return node.Service.Bound(ctx, ipam.Attachment{ContainerID: who.ContainerID, IfName: who.IfName})
		},
		Inside: host.Inside,
		Clock:  node.Service.Clock,
		Log:    node.Log.With("task", "announce"),
	}
	a.Announced = func(ctx context.Context, told announce.Announcement) {
		announced.Inc()
		who := ipam.Attachment{ContainerID: told.Holder.ContainerID, IfName: told.Holder.IfName}
		if err := node.Service.RecordMAC(ctx, who, told.MAC); err != nil {
			a.Log.Warn("the hardware address is not recorded", "address", told.Addr.String(), "error", err)
		}
	}
	return Task{Name: "announce", Run: a.Run}
}
