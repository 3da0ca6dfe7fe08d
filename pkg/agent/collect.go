package agent

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

const (
	// surveyInterval is the longest time between two surveys of the node.
	surveyInterval = 10 * time.Second
	// minSurveyInterval is the shortest time between two surveys.
	minSurveyInterval = time.Second
	// checkInterval is the time between two checks whether leasehold is in use.
	checkInterval = 5 * time.Second
)

// Use judges whether leasehold is in use on the node (retention.UseWatcher).
type Use interface {
	// Check judges again, and reports whether the result of Served has changed. It is called every
	// few seconds.
	Check(ctx context.Context, now time.Time) (changed bool)
	// Served returns the pools that leasehold serves.
	Served() []ipam.Served
}

// Collect returns the task that looks after the store: it ends expired holds, releases the leases
// of dead holders and adopts the addresses that host-local has assigned (ipam.Survey, Plan,
// Act). A holder is the container interface that has the address. The task reports the result of
// each survey to health. After each signal of node.Changes it records spooled DELs in the store,
// all that wait in one transaction: views show them as done before; with the replay they are in the
// journal, and outlive a power cut. It counts the calls in the call log before each survey.
func Collect(node Node, health *Health, use Use) Task {
	return Task{Name: "collect", Run: newCollector(node, health, use).run}
}

// collector is the state of the task that Collect returns.
type collector struct {
	Node
	health   *Health
	use      Use
	calls    callMetrics
	changes  <-chan struct{}
	complete prometheus.Gauge
	doubtful prometheus.Gauge
	problem  daemon.Problem

	unmirrored map[ipam.Ref]time.Duration // since when (lease.Instant.Boot), at the last survey
}

func newCollector(node Node, health *Health, use Use) *collector {
	gauge := func(name, help string) prometheus.Gauge {
		return promauto.With(node.Metrics).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	node.Metrics.MustRegister(storeMetrics{node})
	return &collector{
		Node:    node,
		health:  health,
		use:     use,
		calls:   newCallMetrics(node.Metrics),
		changes: daemon.Any(&node.Changes.Store),
		complete: gauge("leasehold_survey_complete",
			"Whether the last survey of the node was complete (1). While it is 0, the agent releases nothing."),
		doubtful: gauge("leasehold_doubtful_leases",
			"Leases that stay bound because it cannot be determined whether their sandboxes exist."),
	}
}

// run looks after the store until ctx is done. It returns ctx.Err().
func (c *collector) run(ctx context.Context) error {
	var checkAt, surveyAt time.Time
	for ctx.Err() == nil {
		now := time.Now()
		if !now.Before(checkAt) {
			checkAt = now.Add(checkInterval)
			if c.use.Check(ctx, now) {
				surveyAt = now
			}
		}
		if !now.Before(surveyAt) {
			c.calls.read(c.Node)
			surveyAt = now.Add(c.once(ctx))
		}
		select {
		case <-ctx.Done():
		case <-c.changes:
			c.replay(ctx)
		case <-time.After(min(checkInterval, time.Until(surveyAt))):
		}
	}
	return ctx.Err()
}

// replay records spooled DELs. If it fails, the survey reports why, and the next one repeats it.
func (c *collector) replay(ctx context.Context) {
	if err := c.Service.Replay(ctx); err != nil {
		c.Log.Debug("replaying DELs failed", "error", err)
	}
}

// once surveys the node, and ends the holds and releases the leases that are due. It changes
// nothing if the survey fails or is not safe to act on. It returns the time until the next survey.
func (c *collector) once(ctx context.Context) time.Duration {
	c.replay(ctx)
	v, err := c.Service.Survey(ctx, c.use.Served()...)
	if ctx.Err() != nil {
		return surveyInterval
	}
	if err == nil {
		err = v.Unsafe
	}
	c.health.setReady(err)
	c.complete.Set(0)
	if err == nil {
		c.complete.Set(1)
	}
	c.doubtful.Set(float64(v.Doubtful))
	c.logProblem(err, v)
	if err != nil {
		return surveyInterval
	}
	plan := c.due(v)
	c.Log.Debug("node surveyed", "leases", len(v.Leases), "due", len(plan))
	if len(plan) > 0 {
		c.act(ctx, plan)
	}
	return min(surveyInterval, max(minSurveyInterval, time.Duration(v.NextEnd())))
}

// due returns the plan of a survey. A file is written again only if it has been missing for
// surveyInterval: while host-local processes a DEL, and shortly after it, the container exists and
// has no file. If the file were written then, nothing would prove that DEL.
func (c *collector) due(v ipam.Survey) []ipam.Action {
	before := c.unmirrored
	c.unmirrored = map[ipam.Ref]time.Duration{}
	for _, l := range v.Unmirrored {
		since, known := before[ipam.RefTo(l)]
		if !known {
			since = v.Now.Boot
		}
		c.unmirrored[ipam.RefTo(l)] = since
	}
	return slices.DeleteFunc(ipam.Plan(v), func(a ipam.Action) bool {
		return a.Do == ipam.Mirror && v.Now.Boot-c.unmirrored[ipam.RefTo(a.Lease)] < surveyInterval
	})
}

// act executes the plan and logs what was done.
func (c *collector) act(ctx context.Context, plan []ipam.Action) {
	began := time.Now()
	done, err := c.Service.Act(ctx, plan)
	for _, a := range done {
		c.Log.Info(string(a.Do), append(about(a.Lease), "reason", a.Reason)...)
	}
	c.Log.Info("plan executed", "steps", len(done), "planned", len(plan), "took", time.Since(began))
	if err != nil && ctx.Err() == nil {
		c.Log.Warn("executing the plan failed, continuing after the next survey", "error", err)
	}
}

// about returns the attributes of a lease for a log line.
func about(l lease.Lease) []any {
	attrs := []any{"container", l.Holder.ContainerID}
	if l.Address.IsValid() {
		attrs = append(attrs, "address", l.Address, "network", l.Pool.Network)
	}
	if l.Name != "" {
		attrs = append(attrs, "pod", l.Namespace+"/"+l.Name)
	}
	return attrs
}

// logProblem logs a problem of the survey (daemon.Problem). A survey that is not safe to act on is
// an error; leases in doubt are a warning.
func (c *collector) logProblem(err error, v ipam.Survey) {
	level := slog.LevelError
	if err == nil {
		level, err = slog.LevelWarn, v.Doubt
	}
	c.problem.Log(c.Log, level, "node survey", err)
}
