package agent

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

const (
	// surveyInterval is the longest time between two surveys of the node.
	surveyInterval = 10 * time.Second
	// minSurveyInterval is the shortest time between two surveys.
	minSurveyInterval = time.Second
	// checkInterval is the time between two checks whether leasehold is in use.
	checkInterval = 5 * time.Second
)

// Use judges whether leasehold is in use on the node (use.Watcher).
type Use interface {
	// Check judges again, and reports whether the result of Served has changed. It is called every
	// few seconds.
	Check(ctx context.Context, now time.Time) (changed bool)
	// Served returns the pools that leasehold serves.
	Served() []maintain.Served
}

// Leases returns the task that looks after the store: it ends expired holds, releases the leases of
// dead holders and imports the addresses that host-local has assigned (maintain.Survey, Plan, Act).
// A holder is the container interface that has the address. The task reports the result of each
// survey to health. After each signal of node.Changes it applies queued DELs to the store, all of
// them in one transaction: views show them as done before, but only what was applied is in the
// journal, and outlives a power cut.
func Leases(node Node, health *Health, use Use) Task {
	return Task{Name: "leases", Run: newLeaseTask(node, health, use).run}
}

// leaseTask is the state of the task that Leases returns.
type leaseTask struct {
	Node
	health   *Health
	use      Use
	changes  <-chan struct{}
	complete prometheus.Gauge
	unknown  prometheus.Gauge
	problem  daemon.Problem // of the survey
	failed   daemon.Problem // of the actions

	withoutFile map[maintain.Ref]time.Duration // since when (lease.Instant.Boot), at the last survey
}

func newLeaseTask(node Node, health *Health, use Use) *leaseTask {
	gauge := func(name, help string) prometheus.Gauge {
		return promauto.With(node.Metrics).NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	node.Metrics.MustRegister(storeMetrics{node})
	return &leaseTask{
		Node:    node,
		failed:  node.Problem("leases"),
		health:  health,
		use:     use,
		changes: daemon.Any(&node.Changes.Store),
		complete: gauge("leasehold_survey_complete",
			"Whether the last survey of the node was complete (1). While it is 0, the agent releases nothing."),
		unknown: gauge("leasehold_unknown_leases",
			"Leases that stay bound because it cannot be determined whether their sandboxes exist."),
	}
}

// run looks after the store until ctx is done. It returns ctx.Err().
func (t *leaseTask) run(ctx context.Context) error {
	var checkAt, surveyAt time.Time
	return daemon.Loop(ctx, 0, t.changes, func(ctx context.Context) time.Duration {
		now := time.Now()
		if !now.Before(checkAt) {
			checkAt = now.Add(checkInterval)
			if t.use.Check(ctx, now) {
				surveyAt = now
			}
		}
		if now.Before(surveyAt) {
			t.applyQueued(ctx)
		} else {
			surveyAt = now.Add(t.once(ctx))
		}
		return max(time.Millisecond, min(checkInterval, time.Until(surveyAt)))
	})
}

// applyQueued applies queued DELs. If it fails, the survey reports why, and the next one repeats
// it.
func (t *leaseTask) applyQueued(ctx context.Context) {
	if err := t.Service.ApplyQueue(ctx); err != nil {
		t.Log.Debug("applying queued DELs failed", "error", err)
	}
}

// once surveys the node, and ends the holds and releases the leases that are due. It changes
// nothing if the survey fails or is not safe to act on. It returns the time until the next survey.
func (t *leaseTask) once(ctx context.Context) time.Duration {
	t.applyQueued(ctx)
	v, err := t.Service.Survey(ctx, t.use.Served()...)
	if ctx.Err() != nil {
		return surveyInterval
	}
	if err == nil {
		err = v.Unsafe
	}
	t.health.setReady(err)
	t.complete.Set(0)
	if err == nil {
		t.complete.Set(1)
	}
	t.unknown.Set(float64(v.Unknown))
	t.logProblem(err, v)
	if err != nil {
		return surveyInterval
	}
	plan := t.due(v)
	t.Log.Debug("node surveyed", "leases", len(v.Leases), "due", len(plan))
	t.act(ctx, plan)
	return min(surveyInterval, max(minSurveyInterval, time.Duration(v.NextEnd())))
}

// due returns the plan of a survey. A file is written again only if it has been missing for
// surveyInterval: while host-local processes a DEL, and shortly after it, the container exists and
// has no file. If the file were written then, nothing would prove that DEL.
func (t *leaseTask) due(v maintain.Survey) []maintain.Action {
	before := t.withoutFile
	t.withoutFile = map[maintain.Ref]time.Duration{}
	for _, l := range v.WithoutFile {
		since, known := before[maintain.RefTo(l)]
		if !known {
			since = v.Now.Boot
		}
		t.withoutFile[maintain.RefTo(l)] = since
	}
	return slices.DeleteFunc(maintain.Plan(v), func(a maintain.Action) bool {
		return a.Do == maintain.WriteFile && v.Now.Boot-t.withoutFile[maintain.RefTo(a.Lease)] < surveyInterval
	})
}

// act executes the plan and logs what was done.
func (t *leaseTask) act(ctx context.Context, plan []maintain.Action) {
	began := time.Now()
	done, err := t.Service.Act(ctx, plan)
	for _, a := range done {
		t.Log.Info(string(a.Do), append(about(a.Lease), "reason", a.Reason)...)
	}
	if len(done) > 0 {
		t.Log.Info("plan executed", "steps", len(done), "planned", len(plan), "took", time.Since(began))
	}
	if ctx.Err() == nil {
		t.failed.Log(t.Log, slog.LevelWarn, "executing the plan", err)
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
// an error; leases of unknown holders are a warning.
func (t *leaseTask) logProblem(err error, v maintain.Survey) {
	level := slog.LevelError
	if err == nil {
		level, err = slog.LevelWarn, v.WhyUnknown
	}
	t.problem.Log(t.Log, level, "node survey", err)
}
