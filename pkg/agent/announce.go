package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/host"
)

// Announce returns the task that announces the addresses of pods to their neighbours, after an ADD
// gave a pod its former address again. host is used to enter the pod's network namespace.
func Announce(node Node, host *host.Host) Task {
	announced := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "leasehold_announcements_total",
		Help: "Addresses announced to their neighbours after their pod returned.",
	})
	node.Metrics.MustRegister(announced)
	a := Announcer{
		Dir:       node.Service.Node.Store.AnnounceDir(),
		Wake:      daemon.Any(&node.Changes.Queue),
		Bound:     node.Service.Bound,
		Inside:    host.RunInNetns,
		Clock:     node.Service.Node.Clock,
		Announced: announced.Inc,
		Log:       node.Log.With("task", "announce"),
	}
	return Task{Name: "announce", Run: a.Run}
}
