package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// callInterval is the time between two reads of the call log.
const callInterval = 5 * time.Second

// storeMetrics collects the metrics of the store. For each scrape it reads the leases, the pools
// and the counters in one View.
type storeMetrics struct{ node Node }

// callMetrics are the metrics of the plugin's calls, which the plugin writes to the call log
// (rundir.Dir.LogCall).
type callMetrics struct {
	calls  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	waited *prometheus.HistogramVec
}

var (
	descAddresses = prometheus.NewDesc("leasehold_addresses",
		"Addresses of this node, by network and state (Bound, Held, CoolDown).", []string{"network", "state"}, nil)
	descSize = prometheus.NewDesc("leasehold_pool_addresses",
		"Addresses that can be assigned, of the range set with the fewest free ones. There is no value before "+
			"the first ADD.", []string{"network"}, nil)
	descFree = prometheus.NewDesc("leasehold_pool_free_addresses",
		"Addresses that are neither bound nor held, of the range set with the fewest. There is no value before "+
			"the first ADD.", []string{"network"}, nil)
	descQueued = prometheus.NewDesc("leasehold_queued_deletes",
		"DELs that are queued in the run directory. The next call and the agent apply them.", nil, nil)
	descReadable = prometheus.NewDesc("leasehold_store_readable",
		"Whether the lease store could be read for this scrape (1), or is lost or busy (0).", nil, nil)

	// leaseCounters are the counters that the store keeps, by their names in the store.
	leaseCounters = map[string]*prometheus.Desc{
		"leases/kept": leaseCounter("leasehold_leases_kept_total",
			"Addresses that pods got again."),
		"leases/changed": leaseCounter("leasehold_leases_changed_total",
			"Times that a pod got another address because its former sandbox outlived busyTimeout."),
		"leases/expired": leaseCounter("leasehold_leases_expired_total",
			"Holds that expired."),
		"leases/orphaned": leaseCounter("leasehold_leases_orphaned_total",
			"Leases released because their holder died without a DEL."),
		"leases/recovered": leaseCounter("leasehold_leases_recovered_total",
			"Leases recovered after the store was lost or damaged."),
		"leases/yielded": leaseCounter("leasehold_leases_yielded_total",
			"Holds for windows that ended early because the range set was exhausted."),
		"leases/limited": leaseCounter("leasehold_leases_limited_total",
			"Windows and holds shortened by a configured limit."),
	}

	// callBuckets are the histogram buckets of the plugin's calls, in seconds. The largest is
	// files.MaxWait.
	callBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
)

func leaseCounter(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, nil, nil)
}

// newCallMetrics returns the metrics of calls, and registers them.
func newCallMetrics(r prometheus.Registerer) callMetrics {
	histogram := func(name, help string) *prometheus.HistogramVec {
		return promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: callBuckets},
			[]string{"verb"})
	}
	return callMetrics{
		calls: promauto.With(r).NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_calls_total",
			Help: "Calls of the plugin since the agent started, by verb and result: ok, or the error code.",
		}, []string{"verb", "result"}),
		took:   histogram("leasehold_call_duration_seconds", "Duration of calls of the plugin."),
		waited: histogram("leasehold_lock_wait_seconds", "Time that calls of the plugin waited for the store's lock."),
	}
}

// Calls returns the task that counts the calls in the call log.
func Calls(node Node) Task {
	m := newCallMetrics(node.Metrics)
	return Task{Name: "calls", Run: func(ctx context.Context) error {
		return daemon.Loop(ctx, callInterval, nil, func(context.Context) time.Duration {
			m.read(node)
			return callInterval
		})
	}}
}

// read adds the calls that were logged since the last read.
func (m callMetrics) read(node Node) {
	calls, err := node.Service.Node.Store.Run().Calls()
	if err != nil {
		node.Log.Debug("reading the call log failed", "error", err)
	}
	for _, c := range calls {
		m.calls.WithLabelValues(c.Verb, c.Result).Inc()
		m.took.WithLabelValues(c.Verb).Observe(c.Took.Seconds())
		m.waited.WithLabelValues(c.Verb).Observe(c.Waited.Seconds())
	}
}

// Describe implements prometheus.Collector. It describes nothing: which metrics there are depends
// on the store.
func (m storeMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m storeMetrics) Collect(ch chan<- prometheus.Metric) {
	readable := 1.0
	if err := m.collectStore(ch); err != nil {
		m.node.Log.Debug("reading the store for a scrape failed", "error", err)
		readable = 0
	}
	ch <- prometheus.MustNewConstMetric(descReadable, prometheus.GaugeValue, readable)
	queued, err := m.node.Service.Node.Store.Run().QueuedDELs("") // "": the boot id is not needed for the number
	if err != nil {
		m.node.Log.Debug("reading the queued DELs for a scrape failed", "error", err)
		return
	}
	ch <- prometheus.MustNewConstMetric(descQueued, prometheus.GaugeValue, float64(len(queued)))
}

// collectStore reads the store and sends its metrics to ch. It reads for at most two seconds.
func (m storeMetrics) collectStore(ch chan<- prometheus.Metric) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var totals map[string]store.Counts
	var usage []store.Usage
	var counters map[string]uint64
	err := m.node.Service.Node.Store.View(ctx, func(tx *store.Tx) error {
		totals, usage, counters = tx.Totals(), tx.Usage(), tx.Counters()
		return nil
	})
	if err != nil || totals == nil { // nil: the store was never used
		return err
	}
	gauge := func(desc *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
	}
	for network, n := range totals {
		gauge(descAddresses, n.Bound, network, "Bound")
		gauge(descAddresses, n.Held, network, "Held")
		gauge(descAddresses, n.CoolDown, network, "CoolDown")
	}
	for _, u := range store.ByNetwork(usage) {
		if u.Ranges != nil {
			gauge(descSize, u.Size, u.Pool.Network)
			gauge(descFree, u.Free, u.Pool.Network)
		}
	}
	for name, desc := range leaseCounters {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(counters[name]))
	}
	return nil
}
