// Package use watches whether leasehold is in use: whether the configuration that the container
// runtime loads names leasehold's plugin, and whether the pods that request retention have leases.
package use

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
)

const (
	// confirmAfter is how long a network must be inactive or unknown before that is reported,
	// because files are often replaced in several steps.
	confirmAfter = 15 * time.Second
	// slack is the least time from the last change of the configuration or the binary to the start
	// of a pod whose missing lease counts. A runtime loads a new configuration with a delay.
	slack = 5 * time.Second
)

// The reasons of the states of a network, beside those of package cniconf.
const (
	// PodWithoutLease: the configuration names leasehold, and an annotated pod has an address
	// without a lease, on an interface eth0 of the node. The runtime uses other directories, or a
	// RuntimeClass with a configuration of its own: correct --cni-conf-dir and --cni-bin-dir.
	PodWithoutLease = "PodWithoutLease"
)

// OtherDirectories says what to do about PodWithoutLease.
const OtherDirectories = "the runtime may use other directories: set --cni-conf-dir and --cni-bin-dir to those of " +
	"the runtime"

// A Watcher is used by the task agent.Leases. While leasehold is not in use, it reports that with a
// metric, a log line and Events, which name the configuration file and its content. The result does
// not affect the readiness of the agent.
//
// The exported fields must be set before the first Check.
type Watcher struct {
	Service *maintain.Service
	Node    string
	Log     *slog.Logger
	// ConfDir is the directory from which the runtime loads CNI configurations. RuntimeFiles are
	// the runtime's own configuration, which says how it chooses among the files there
	// (cniconf.ReadRuntime). Binaries are the runtime's directories of plugins.
	ConfDir      string
	RuntimeFiles string
	Binaries     cniconf.Binaries
	// Pods returns the pods of the node that request retention, and Report is called with the
	// confirmed statuses after each check. Both are nil without an API server.
	Pods   func() []retention.Pod
	Report func([]cniconf.Status, time.Time)

	// Changes is sent when Result has changed.
	Changes daemon.Signal

	metric    *prometheus.GaugeVec
	confirmer confirmer
	leased    map[string]bool // pods found with a lease, by UID; not checked again

	result atomic.Value // []cniconf.Status
}

// Register registers the metric. It must be called once, before the first Check.
func (w *Watcher) Register(r prometheus.Registerer) {
	w.metric = promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{
		Name: "leasehold_retention_active",
		Help: "Whether leasehold serves a network (1) or not (0). There is no value while that is not known.",
	}, []string{"node", "network"})
}

// Result returns the status of each network. It returns at least one status, or nil before the
// first result. The caller must not modify the slice.
func (w *Watcher) Result() []cniconf.Status {
	statuses, _ := w.result.Load().([]cniconf.Status)
	return statuses
}

// Served returns the pools of the networks that are active according to Result.
func (w *Watcher) Served() (out []maintain.Served) {
	for _, s := range w.Result() {
		if s.State == cniconf.Active && s.Pool != (lease.Pool{}) {
			out = append(out, maintain.Served{Scope: operation.Existing(s.Pool, s.Sets), Since: s.Since})
		}
	}
	return out
}

// Check makes one check. If the confirmed statuses have changed, it publishes them and returns
// true.
func (w *Watcher) Check(ctx context.Context, now time.Time) (changed bool) {
	if changed = w.confirmer.add(w.read(ctx, now), now); changed {
		w.publish()
	}
	if w.Report != nil && w.confirmer.confirmed != nil {
		w.Report(w.confirmer.confirmed, now)
	}
	return changed
}

// read makes one check and returns the status of each network. It checks the pods only if the
// configuration of every network leads to leasehold, because otherwise the missing leases are
// already explained.
func (w *Watcher) read(ctx context.Context, now time.Time) []cniconf.Status {
	statuses := cniconf.Check(cniconf.Load(w.ConfDir, cniconf.ReadRuntime(w.RuntimeFiles).Rules), w.Binaries)
	w.confirmer.date(statuses, now)
	if w.Pods != nil && !slices.ContainsFunc(statuses, isOff) {
		if pod, found := w.unleased(ctx, statuses); found {
			notUsed(&statuses[0], pod)
		}
	}
	return statuses
}

// unleased returns the first pod that must have a lease and has none: it requests retention, has an
// address that the kernel has too, because anybody who may write the status of a pod can write any
// address, and started more than slack after the last change of a configuration or binary. It
// reports false if there is none, if the leases or the kernel's addresses cannot be read, and if
// the store was lost and does not know the leases of one of the networks again.
func (w *Watcher) unleased(ctx context.Context, networks []cniconf.Status) (pod retention.Pod, found bool) {
	since := slices.MaxFunc(networks, func(a, b cniconf.Status) int { return a.Since.Compare(b.Since) }).Since
	former, left := w.leased, []retention.Pod(nil)
	w.leased = map[string]bool{} // without the pods that no longer exist
	// The pods are read before the leases. The API shows an address only after the lease was
	// stored, so that no new pod seems to have no lease.
	for _, p := range w.Pods() {
		if former[p.UID] {
			w.leased[p.UID] = true
		} else if len(p.IPs) > 0 && p.Started.After(since.Add(slack)) {
			left = append(left, p)
		}
	}
	if len(left) == 0 {
		return retention.Pod{}, false
	}
	view, err := w.Service.List(ctx, func(lease.Lease) bool { return true })
	isLost := func(s cniconf.Status) bool { return view.Lost && !view.Imported(s.Network) } // until its next ADD
	if err != nil || slices.ContainsFunc(networks, isLost) {
		return retention.Pod{}, false
	}
	hasLease := podsIn(view.Leases)
	left = slices.DeleteFunc(left, func(p retention.Pod) bool {
		if hasLease(p) {
			w.leased[p.UID] = true
		}
		return w.leased[p.UID]
	})
	if len(left) == 0 {
		return retention.Pod{}, false
	}
	namespaces, _ := w.Service.Node.Host.Namespaces()
	if i := slices.IndexFunc(left, func(p retention.Pod) bool { return isPlugged(p, namespaces) }); i >= 0 {
		return left[i], true
	}
	return retention.Pod{}, false
}

// isPlugged reports whether the first interface of a sandbox of the node has an address of the pod.
func isPlugged(p retention.Pod, namespaces []host.Namespace) bool {
	return slices.ContainsFunc(namespaces, func(n host.Namespace) bool {
		return slices.ContainsFunc(n.Addresses, func(a host.Address) bool {
			return a.IfName == "eth0" && slices.Contains(p.IPs, a.Addr.String())
		})
	})
}

// publish makes the confirmed statuses the Result, signals Changes, sets the metric and logs one
// line for each network.
func (w *Watcher) publish() {
	w.result.Store(w.confirmer.confirmed)
	w.Changes.Send()
	w.metric.Reset()
	for _, s := range w.confirmer.confirmed {
		if s.State != cniconf.Unknown {
			value := 0.0
			if s.State == cniconf.Active {
				value = 1
			}
			w.metric.WithLabelValues(w.Node, s.Network).Set(value)
		}
		level, text := slog.LevelWarn, "retention is not active"
		switch s.State {
		case cniconf.Active:
			level, text = slog.LevelInfo, "retention is active"
		case cniconf.Unknown:
			text = "whether retention is active is not known"
		}
		w.Log.Log(context.Background(), level, text, "network", s.Network, "reason", s.Reason, "message", s.Message)
	}
}

// confirmer decides which statuses are reported. It combines the results of all checks so far. A
// check is one call of Watcher.read; it returns one status for each network.
type confirmer struct {
	confirmed []cniconf.Status     // nil before the first result
	readAt    time.Time            // when date was last called; zero before the first call
	offSince  time.Time            // since when a network has not been active; zero if all are
	files     map[string]fileState // by network
}

// A fileState is the state of the files that determine the status of a network, and since when the
// network has had this status.
type fileState struct {
	file, binary   string
	changed, since time.Time
}

// date sets Since of each status to the time when the files of its network took effect. cniconf
// sets it to the time when the files were last changed, which is not the same: a file that is
// loaded because another file was removed takes effect only now. date does not change the status of
// a network that is unknown, and keeps the former fileState of that network.
func (c *confirmer) date(statuses []cniconf.Status, now time.Time) {
	known := map[string]fileState{}
	for i := range statuses {
		s := &statuses[i]
		before, found := c.files[s.Network]
		e := fileState{file: s.File, binary: s.Binary, changed: s.Since, since: s.Since}
		switch {
		case s.State == cniconf.Unknown: // a file could not be read, and might not have changed
			if found {
				known[s.Network] = before
			}
			continue
		case found && before.file == e.file && before.binary == e.binary && before.changed.Equal(e.changed):
			e.since = before.since
		case !c.readAt.IsZero() && s.Since.Before(c.readAt):
			e.since = now
		}
		s.Since, known[s.Network] = e.since, e
	}
	c.files, c.readAt = known, now
}

// add records the statuses of a check, and reports whether c.confirmed has changed. If the status
// of a network is inactive or unknown, c.confirmed stays until that has been so for confirmAfter;
// all networks have this delay in common. add sets a zero Since to the beginning of the delay, and
// keeps the slice.
func (c *confirmer) add(statuses []cniconf.Status, now time.Time) (changed bool) {
	if !slices.ContainsFunc(statuses, isOff) {
		c.offSince = time.Time{}
	} else if c.offSince.IsZero() {
		c.offSince = now
	}
	if !c.offSince.IsZero() && now.Sub(c.offSince) < confirmAfter {
		return false
	}
	for i := range statuses {
		if statuses[i].Since.IsZero() {
			statuses[i].Since = c.offSince
		}
	}
	changed = c.confirmed == nil || !slices.EqualFunc(c.confirmed, statuses, same)
	c.confirmed = statuses
	return changed
}

// isOff reports whether a network is inactive or unknown.
func isOff(s cniconf.Status) bool { return s.State != cniconf.Active }

// same reports whether two statuses are equal except for Since.
func same(a, b cniconf.Status) bool {
	a.Since = b.Since
	return reflect.DeepEqual(a, b)
}

// podsIn returns a function that reports whether a pod has one of the leases: one that names it, in
// whichever state, or a bound one of one of its addresses. A lease that was recovered after the
// loss of the store may lack the pod's name and UID.
func podsIn(leases []lease.Lease) func(retention.Pod) bool {
	type pod struct{ namespace, name, uid string }
	byPod, byAddress := map[pod]bool{}, map[string]bool{}
	for _, l := range leases {
		byPod[pod{l.Namespace, l.Name, l.UID}] = true
		if l.State == lease.Bound {
			byAddress[l.Address.String()] = true
		}
	}
	return func(p retention.Pod) bool {
		return byPod[pod{p.Namespace, p.Name.Name, p.UID}] ||
			slices.ContainsFunc(p.IPs, func(ip string) bool { return byAddress[ip] })
	}
}

// notUsed makes a status Inactive because of a pod without a lease, which proves that the runtime
// does not use the configuration that was read. The status is that of the network of the pod's
// first interface, the first one.
func notUsed(s *cniconf.Status, pod retention.Pod) {
	s.State, s.Reason = cniconf.Inactive, PodWithoutLease
	s.Message = fmt.Sprintf("%s, but pod %s, started %s, has %s without a lease; %s", s.Message,
		pod.Name, pod.Started.UTC().Format(time.RFC3339), pod.IPs[0], OtherDirectories)
}
