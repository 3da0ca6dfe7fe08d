package agent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

const (
	// lookEvery is how often the node is looked at.
	lookEvery = 10 * time.Second
	// lookPause is the least time between two looks.
	lookPause = time.Second
	// forgetEvery is how often windows that nobody needs are looked for.
	forgetEvery = time.Hour
)

// Collect is the task that ends what is over and releases what is dead
// (ipam.Survey, Plan, Act). Health hears how each look went.
func Collect(node Node, health *Health) Task {
	return Task{Name: "collect", Run: newCollector(node, health).run}
}

type collector struct {
	Node
	health    *Health
	doubtful  prometheus.Gauge
	said      string // the last trouble that was logged
	forgotten time.Time
}

func newCollector(node Node, health *Health) *collector {
	c := &collector{Node: node, health: health, doubtful: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "leasehold_doubtful_leases",
		Help: "Leases whose sandboxes the agent does not find and cannot prove to be gone: they stay bound. Its log says why.",
	})}
	node.Metrics.MustRegister(c.doubtful)
	return c
}

func (c *collector) run(ctx context.Context) error {
	for {
		next := c.once(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(next):
		}
	}
}

// once looks, plans and acts, and says when to look again.
func (c *collector) once(ctx context.Context) time.Duration {
	v, err := c.Service.Survey(ctx)
	if ctx.Err() != nil {
		return lookEvery
	}
	if err == nil {
		err = v.Blind
	}
	c.health.SetReady(err)
	c.doubtful.Set(float64(v.Doubtful))
	c.say(err, v)
	if err != nil {
		return lookEvery
	}
	plan := ipam.Plan(v)
	c.Log.Debug("looked", "leases", len(v.Leases), "due", len(plan))
	if len(plan) > 0 {
		c.act(ctx, plan)
	}
	if !v.Unused {
		c.forget(ctx)
	}
	return min(lookEvery, max(lookPause, v.NextEnd()))
}

func (c *collector) act(ctx context.Context, plan []ipam.Action) {
	began := time.Now()
	done, err := c.Service.Act(ctx, plan)
	for _, i := range done.Taken {
		a := plan[i]
		c.Log.Info(string(a.Do), append(about(a.Lease), "reason", a.Reason)...)
	}
	c.Log.Info("collected", "steps", len(done.Taken), "of", len(plan), "longestLock", done.Longest, "took", time.Since(began))
	if err != nil && ctx.Err() == nil {
		c.Log.Warn("the rest is left to the next look", "error", err)
	}
}

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

// say logs trouble when it comes, changes and goes.
func (c *collector) say(err error, v ipam.Survey) {
	text, level := "", c.Log.Warn
	switch {
	case err != nil:
		text, level = err.Error(), c.Log.Error
	case v.Doubt != nil:
		text = v.Doubt.Error()
	case v.Unproven != nil:
		text = v.Unproven.Error() + "; there are no leases yet"
	}
	switch {
	case text == c.said:
		return
	case text == "":
		c.Log.Info("the node can be looked at again")
	default:
		level("looking at the node", "error", text)
	}
	c.said = text
}

func (c *collector) forget(ctx context.Context) {
	if time.Since(c.forgotten) < forgetEvery {
		return
	}
	if err := c.Service.ForgetWindows(ctx); err != nil {
		c.Log.Warn("windows that are not needed any more", "error", err)
		return
	}
	c.forgotten = time.Now()
}
