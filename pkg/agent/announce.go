package agent

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/pkg/host"
)

// Announce returns the task that announces the addresses of pods to their neighbours, after an ADD
// gave a pod its former address again. The task also records the MAC address of the pod's interface
// in the lease, so that a later ADD can restore it. host is used to enter the pod's network
// namespace.
func Announce(node Node, host *host.Host) Task {
	announced := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "leasehold_announcements_total",
		Help: "Addresses announced to their neighbours after their pod returned.",
	})
	node.Metrics.MustRegister(announced)
	a := Announcer{
		Dir:    node.Service.Node.Store.AnnounceDir(),
		Wake:   node.Changes.Queue(),
		Bound:  node.Service.Bound,
		Inside: host.RunInNetns,
		Clock:  node.Service.Node.Clock,
		Log:    node.Log.With("task", "announce"),
	}
	a.Announced = func(ctx context.Context, sent Announcement) {
		announced.Inc()
		if err := node.Service.RecordMAC(ctx, sent.Holder.Attachment(), sent.MAC); err != nil {
			a.Log.Warn("recording the hardware address failed", "address", sent.Addr.String(), "error", err)
		}
	}
	return Task{Name: "announce", Run: a.Run}
}
