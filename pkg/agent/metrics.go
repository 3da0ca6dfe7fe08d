package agent

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Metrics is a collector of what the store and the plugin report. For each scrape it reads the
// gauges and the counters of leases in one short View, and the calls of the plugin from its call
// log (store.Store.LogCall). Register it once.
type Metrics struct {
	node Node

	mu      sync.Mutex
	locks   Locks
	tallied *store.CallLogReader // nil until the first read

	calls  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	waited *prometheus.HistogramVec
	locked *prometheus.HistogramVec
}

var (
	descAddresses = prometheus.NewDesc("leasehold_addresses",
		"Addresses of this node, by network and state (Bound, Held, CoolDown).", []string{"network", "state"}, nil)
	descSize = prometheus.NewDesc("leasehold_pool_addresses",
		"Addresses that can be assigned, of the range set with the fewest free ones.", []string{"network"}, nil)
	descFree = prometheus.NewDesc("leasehold_pool_free_addresses",
		"Addresses that are neither bound nor held, of the range set with the fewest.", []string{"network"}, nil)
	descSpooled = prometheus.NewDesc("leasehold_spooled_deletes",
		"DELs that wait in the run directory for the store. The next call and the agent replay them.", nil, nil)
	descReadable = prometheus.NewDesc("leasehold_store_readable",
		"Whether the lease store could be read for this scrape.", nil, nil)

	// leaseCounters are the counters in the store, by their names there.
	leaseCounters = map[string]*prometheus.Desc{
		"leases/kept": leaseCounter("leasehold_leases_kept_total",
			"Addresses that pods came back to."),
		"leases/changed": leaseCounter("leasehold_leases_changed_total",
			"Times that a pod got another address because its former sandbox outlived busyTimeout."),
		"leases/expired": leaseCounter("leasehold_leases_expired_total",
			"Holds that expired."),
		"leases/orphaned": leaseCounter("leasehold_leases_orphaned_total",
			"Leases released because their holder died without a DEL."),
		"leases/recovered": leaseCounter("leasehold_leases_recovered_total",
			"Leases recovered after the store was lost or damaged."),
		"leases/yielded": leaseCounter("leasehold_leases_yielded_total",
			"Firm holds that ended early because the range set was exhausted."),
		"leases/limited": leaseCounter("leasehold_leases_limited_total",
			"Windows and holds shortened by a configured limit."),
	}

	// callBuckets are in seconds. The longest is store.MaxWait.
	callBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	// lockBuckets are in seconds. The agent intends to hold the lock for at most 2 ms at a time.
	lockBuckets = []float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .05, .1, .5}
)

func leaseCounter(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, nil, nil)
}

// NewMetrics returns the metrics of a node's store.
func NewMetrics(node Node) *Metrics {
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	return &Metrics{
		node: node,
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_calls_total",
			Help: "Calls of the plugin since the agent started, by verb and result: ok, or the error code.",
		}, []string{"verb", "result"}),
		took: histogram("leasehold_call_duration_seconds", "Duration of calls of the plugin.", callBuckets, "verb"),
		waited: histogram("leasehold_lock_wait_seconds", "Time that calls of the plugin waited for the store's lock.",
			callBuckets, "verb"),
		locked: histogram("leasehold_agent_lock_seconds", "Time that the agent held the store's lock per transaction.",
			lockBuckets),
	}
}

// Watch returns a context whose transactions are measured: the agent's own use of the store's lock.
func (m *Metrics) Watch(ctx context.Context) context.Context {
	own := m.locked.WithLabelValues()
	return store.WithTiming(ctx, func(t store.Timing) {
		own.Observe(t.Held.Seconds())
		m.mu.Lock()
		defer m.mu.Unlock()
		m.locks.Longest = max(m.locks.Longest, t.Held)
		m.locks.All++
		if t.Held > 2*time.Millisecond {
			m.locks.Long++
		}
	})
}

// Locks summarizes how the agent has used the store's lock.
type Locks struct {
	Longest time.Duration
	All     int // times held
	Long    int // times held for more than 2 ms
}

// Locks returns the summary so far.
func (m *Metrics) Locks() Locks {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.locks
}

// Task returns the task that reads the call log without a scrape too, so that the file does not
// grow.
func (m *Metrics) Task() Task {
	return Task{Name: "metrics", Run: func(ctx context.Context) error {
		defer m.close()
		for {
			m.read()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pollInterval):
			}
		}
	}}
}

func (m *Metrics) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tallied != nil {
		m.tallied.Close()
		m.tallied = nil
	}
}

// read counts the calls since the last read. If the log was removed, at a reboot or by a cleaner,
// it starts a new one.
func (m *Metrics) read() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range 2 {
		if m.tallied == nil {
			t, err := m.node.Service.Store.OpenCallLog()
			if err != nil {
				m.node.Log.Debug("reading the call log failed", "error", err)
				return
			}
			m.tallied = t
		}
		err := m.tallied.Next(func(c store.Call) {
			m.calls.WithLabelValues(c.Verb, c.Result).Inc()
			m.took.WithLabelValues(c.Verb).Observe(c.Took.Seconds())
			m.waited.WithLabelValues(c.Verb).Observe(c.Waited.Seconds())
		})
		if err == nil {
			return
		}
		m.tallied.Close()
		m.tallied = nil
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- descAddresses
	ch <- descSize
	ch <- descFree
	ch <- descSpooled
	ch <- descReadable
	for _, d := range leaseCounters {
		ch <- d
	}
	for _, c := range m.own() {
		c.Describe(ch)
	}
}

func (m *Metrics) own() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.took, m.waited, m.locked}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.read()
	for _, c := range m.own() {
		c.Collect(ch)
	}
	readable := 1.0
	if err := m.collectStore(ch); err != nil && !store.IsEmpty(err) {
		m.node.Log.Debug("reading the store for a scrape failed", "error", err)
		readable = 0
	}
	ch <- prometheus.MustNewConstMetric(descReadable, prometheus.GaugeValue, readable)
	spooled, err := m.node.Service.Store.Spooled("") // the boot id is of no use for their number
	if err != nil {
		m.node.Log.Debug("reading the spool for a scrape failed", "error", err)
		return
	}
	ch <- prometheus.MustNewConstMetric(descSpooled, prometheus.GaugeValue, float64(len(spooled)))
}

func (m *Metrics) collectStore(ch chan<- prometheus.Metric) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var totals map[string]store.Counts
	var usage []store.Usage
	var counters map[string]uint64
	err := m.node.Service.Store.View(m.Watch(ctx), func(tx *store.Tx) error {
		totals, usage, counters = tx.Totals(), tx.Usage(), tx.Counters()
		return nil
	})
	if err != nil {
		return err
	}
	gauge := func(desc *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
	}
	for network, n := range totals {
		gauge(descAddresses, uint64(n.Bound), network, "Bound")
		gauge(descAddresses, uint64(n.Firm), network, "Held")
		gauge(descAddresses, uint64(n.Soft), network, "CoolDown")
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
