package agent

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Metrics is what the store and the plugin say, read when somebody asks: gauges
// and the counters of leases in one short View, and the calls of the plugin from
// the lines that it leaves (store.Tally). Register it once.
type Metrics struct {
	node Node

	mu      sync.Mutex
	locks   Locks
	tallied *store.Tallied // nil until the first look

	calls  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	waited *prometheus.HistogramVec
	locked *prometheus.HistogramVec
}

var (
	descAddresses = prometheus.NewDesc("leasehold_addresses",
		"Addresses of this node by network and state: bound to a sandbox, held for a pod that is away, or in their cool-down.",
		[]string{"network", "state"}, nil)
	descReadable = prometheus.NewDesc("leasehold_store_readable",
		"Whether the lease store could be read for this scrape.", nil, nil)

	// leaseCounters are those that the plugin keeps in the store, by the name
	// that they have there.
	leaseCounters = map[string]*prometheus.Desc{
		"leases/kept":      leaseCounter("kept", "Addresses that a pod came back to."),
		"leases/changed":   leaseCounter("changed", "Addresses that a pod lost to another one because its former sandbox outlived busyTimeout."),
		"leases/expired":   leaseCounter("expired", "Holds that came to their end."),
		"leases/orphaned":  leaseCounter("orphaned", "Leases whose holder died without a DEL."),
		"leases/recovered": leaseCounter("recovered", "Leases that were learnt again after the store was lost or damaged."),
		"leases/limited":   leaseCounter("limited", "Promises that a configured limit has cut."),
	}

	// callBuckets reach from a fast disk to the longest wait (I7), in seconds.
	callBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	// lockBuckets are around what the agent allows itself.
	lockBuckets = []float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .05, .1, .5}
)

func leaseCounter(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("leasehold_leases_"+name+"_total", help, nil, nil)
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
			Help: "Calls of the plugin since the agent has started, by verb and result: ok, or the code of the error.",
		}, []string{"verb", "result"}),
		took:   histogram("leasehold_call_duration_seconds", "How long the plugin took for a call.", callBuckets, "verb"),
		waited: histogram("leasehold_lock_wait_seconds", "How long a call of the plugin waited for the store's lock.", callBuckets, "verb"),
		locked: histogram("leasehold_agent_lock_seconds", "How long the agent held the store's lock at a time.", lockBuckets),
	}
}

// Watch makes the agent's own use of the lock under ctx part of the metrics.
func (m *Metrics) Watch(ctx context.Context) context.Context {
	own := m.locked.WithLabelValues()
	return store.Measured(ctx, func(t store.Timing) {
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

// Locks is how the agent has used the store's lock.
type Locks struct {
	Longest time.Duration
	All     int // how often
	Long    int // for more than 2 ms
}

// Locks returns it.
func (m *Metrics) Locks() Locks {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.locks
}

// Task reads the plugin's lines also while nobody asks, so that their file does
// not grow.
func (m *Metrics) Task() Task {
	return Task{Name: "metrics", Run: func(ctx context.Context) error {
		defer m.close()
		for {
			m.read()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(slowPoll):
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

// read counts the calls since the last time. The file goes with its directory
// at a reboot, or with a careless cleaner: then it is made anew.
func (m *Metrics) read() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range 2 {
		if m.tallied == nil {
			t, err := m.node.Service.Store.Tallied()
			if err != nil {
				m.node.Log.Debug("calls are not counted", "error", err)
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
		m.node.Log.Debug("the store cannot be read for a scrape", "error", err)
		readable = 0
	}
	ch <- prometheus.MustNewConstMetric(descReadable, prometheus.GaugeValue, readable)
}

func (m *Metrics) collectStore(ch chan<- prometheus.Metric) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var totals map[string]store.Counts
	var counters map[string]uint64
	err := m.node.Service.Store.View(m.Watch(ctx), func(tx *store.Tx) error {
		totals, counters = tx.Totals(), tx.Counters()
		return nil
	})
	if err != nil {
		return err
	}
	gauge := func(network, state string, n uint32) {
		ch <- prometheus.MustNewConstMetric(descAddresses, prometheus.GaugeValue, float64(n), network, state)
	}
	for network, n := range totals {
		gauge(network, "Bound", n.Bound)
		gauge(network, "Held", n.Firm)
		gauge(network, "CoolDown", n.Soft)
	}
	for name, desc := range leaseCounters {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(counters[name]))
	}
	return nil
}
