package pin

import "github.com/prometheus/client_golang/prometheus"

// collectors are the metrics of the pin.
type collectors struct {
	decisions   *prometheus.CounterVec // by mode and reason
	duration    prometheus.Histogram
	withdrawals *prometheus.CounterVec // by reason
	lifted      *prometheus.CounterVec // by result
	evictions   *prometheus.CounterVec // by reason
}

// newCollectors registers the metrics of the pin. gates returns the number of pods that have a gate
// now; it is called at each scrape.
func newCollectors(registry prometheus.Registerer, gates func() float64) (*collectors, error) {
	m := &collectors{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_pin_decisions_total",
			Help: "Retained pods admitted, by the mode of their pin (none: not pinned) and by the reason.",
		}, []string{"mode", "reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "leasehold_pin_duration_seconds",
			Help:    "How long the webhook took for a pod.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .1, .5, 2},
		}),
		withdrawals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_pin_withdrawals_total",
			Help: "Nominations taken back, by the reason.",
		}, []string{"reason"}),
		lifted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_gates_lifted_total",
			Help: "Gates lifted, by whether the pod got its nomination before.",
		}, []string{"nominated"}),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_pin_evictions_total",
			Help: "Pending pods evicted because the node that they were required to wait for did not take them, by " +
				"the reason.",
		}, []string{"reason"}),
	}
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "leasehold_gates_open",
		Help: "Pods that wait for their nomination now.",
	}, gates)
	for _, c := range []prometheus.Collector{m.decisions, m.duration, m.withdrawals, m.lifted, m.evictions, open} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
