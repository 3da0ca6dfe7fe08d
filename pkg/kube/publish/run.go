package publish

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/signal"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	pace    = 100 * time.Millisecond
	retry   = 5 * time.Second
	workers = 4
	// identityFor is how long the node's UID is taken for true without asking. A node that was made anew has another.
	identityFor = time.Minute
	// oldLease: what is published of such a lease for the first time is no news.
	oldLease = time.Minute
	// vainFor is how long nothing is done about an object to which something was applied in vain.
	vainFor = 10 * time.Minute
)

// Publisher is the task.
type Publisher struct {
	Service *ipam.Service
	Node    string
	Core    rest.Interface
	Pods    *nodepods.Pods
	Objects *Objects
	Log     *slog.Logger
	Metrics *Metrics

	queue    workqueue.TypedDelayingInterface[live.Name]
	identity signal.Signal // node is another
	said     string        // the last trouble that was logged

	mu     sync.Mutex
	lists  int               // of the objects, that have come
	failed map[live.Name]int // how often in a row; such an object waits for its next turn
	vain   map[live.Name]attempt
	node   Node // without a UID while it is not known
	plan   map[live.Name]Wanted
	view   ipam.NodeView // of which the plan was made
}

// attempt is what was applied in vain, with the version that it has not changed, and when.
type attempt struct {
	object ipamv1.IPReservation
	at     lease.Instant
}

// Metrics are what the publisher counts.
type Metrics struct {
	lag    prometheus.Histogram
	writes *prometheus.CounterVec
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "leasehold_publish_lag_seconds",
			Help:    "Time from a pod's getting or leaving its addresses to its reservation's saying so.",
			Buckets: []float64{.1, .25, .5, 1, 2, 5, 10, 30, 60, 300},
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_publish_writes_total",
			Help: "Reservations written: by what (spec, status, delete) and how it went (ok, error).",
		}, []string{"what", "result"}),
	}
	r.MustRegister(m.lag, m.writes)
	return m
}

func (m *Metrics) wrote(what string, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.writes.WithLabelValues(what, result).Inc()
}

// Run publishes until ctx is done. changes brings a word when the store has changed.
func (p *Publisher) Run(ctx context.Context, changes <-chan struct{}) error {
	p.begin()
	var running sync.WaitGroup
	defer running.Wait()
	defer p.queue.ShutDown()
	for range workers {
		running.Go(func() {
			for p.work(ctx) {
			}
		})
	}
	wake := live.Any(ctx, changes, p.Pods.Changes(), p.Objects.Changes(), p.identity.Subscribe())
	running.Go(func() { _ = live.Loop(ctx, time.Second, nil, p.identify) })
	return live.Loop(ctx, pace, wake, p.pass)
}

func (p *Publisher) begin() {
	p.queue = workqueue.NewTypedDelayingQueue[live.Name]()
	p.failed, p.vain = map[live.Name]int{}, map[live.Name]attempt{}
}

// pass looks and plans; the workers act.
func (p *Publisher) pass(ctx context.Context) (again time.Duration) {
	p.forgive(p.Objects.Lists())
	there, listed := p.Objects.Rows()
	if !listed {
		return 0 // what is published is not known yet
	}
	p.mu.Lock()
	node := p.node
	p.mu.Unlock()
	if node.UID == "" {
		return 0 // identify says when it is known
	}
	view, err := p.Service.Look(ctx, IsKept)
	if store.IsEmpty(err) {
		view, err = ipam.NodeView{}, nil // it knows of no network, so nothing is deleted
	}
	if err != nil {
		p.say("reservations wait for the store", err)
		return retry
	}
	pods, _ := p.Pods.Rows()
	plan := Make(node, view, pods, there)
	p.set(plan, view)
	for name := range plan.Objects {
		p.check(name)
	}
	for name := range there {
		p.check(name)
	}
	err = p.giveUp(ctx, plan.GiveUp)
	p.say("addresses cannot be given up yet", err)
	if err != nil {
		return retry
	}
	return plan.next()
}

// next is when the next pass is due if nothing happens before: what was applied in vain has its turn again.
func (plan *Plan) next() time.Duration {
	plan.again(wait.Jitter(vainFor, 0.5))
	return plan.Again
}

// say logs what passes have to wait for when it comes, changes and goes.
func (p *Publisher) say(trouble string, err error) {
	text := ""
	if err != nil {
		text = trouble + ": " + err.Error()
	}
	switch {
	case text == p.said:
		return
	case err != nil:
		p.Log.Warn(trouble, "error", err)
	default:
		p.Log.Info("what reservations had to wait for is over")
	}
	p.said = text
}

func (p *Publisher) set(plan Plan, view ipam.NodeView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	view.Leases, view.Windows = nil, nil
	p.plan, p.view = plan.Objects, view
	maps.DeleteFunc(p.vain, func(name live.Name, v attempt) bool {
		_, wanted := p.plan[name]
		return !wanted || view.Now.Since(v.at) >= vainFor
	})
}

// identify asks for the node's UID now and then. Not in a pass: where packets are lost an answer may take RequestTimeout,
// and meanwhile what is known is as true as before.
func (p *Publisher) identify(ctx context.Context) (again time.Duration) {
	uid, err := NodeUID(ctx, p.Core, p.Node)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		if now := (Node{p.Node, uid}); now != p.node {
			p.node = now
			p.identity.Send()
		}
		return identityFor
	case apierrors.IsNotFound(err):
		p.node = Node{}
	}
	if p.node.UID == "" && ctx.Err() == nil {
		p.Log.Warn("reservations wait for the node's object", "error", err)
	}
	return wait.Jitter(retry/2, 1)
}

func (p *Publisher) giveUp(ctx context.Context, pods [][]ipam.Ref) error {
	err := p.Service.GiveUp(ctx, pods, "its reservation was told to release it (spec.release)")
	if err != nil {
		return err
	}
	for _, r := range slices.Concat(pods...) {
		p.Log.Info("an address was given up by spec.release", "address", r.Address.String(), "lease", r.ID)
	}
	return nil
}

// task is what is to be done about one object.
type task struct {
	want   *Wanted
	there  *ipamv1.IPReservation
	change Change
	remove bool
}

func (t task) isNothing() bool { return t.change == Change{} && !t.remove }

// look decides about one object, from the last plan and what is there now.
func (p *Publisher) look(name live.Name) task {
	p.mu.Lock()
	defer p.mu.Unlock()
	there, _ := p.Objects.Get(name)
	t := task{there: there}
	if w, ok := p.plan[name]; ok {
		t.want, t.change = &w, Compare(&w.Object, there)
		v, tried := p.vain[name]
		if tried && there != nil && v.object.ResourceVersion == there.ResourceVersion && Compare(&w.Object, &v.object) == (Change{}) {
			t.change = Change{}
		}
		return t
	}
	t.remove = there != nil && there.Spec.NodeName == p.node.Name && there.Spec.NodeUID == p.node.UID && p.isOver(there)
	return t
}

// forgive ends the waiting of what failed, or was in vain, when a new list has come: the server, or the CRD, is back, or is
// another.
func (p *Publisher) forgive(lists int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lists != p.lists {
		p.lists = lists
		clear(p.failed)
		clear(p.vain)
	}
}

// isOver tells whether it is certain that the node keeps nothing of what an object without leases says.
func (p *Publisher) isOver(there *ipamv1.IPReservation) bool {
	if len(there.Status.Addresses) == 0 {
		return !p.view.Now.IsZero() // it says nothing
	}
	for _, a := range there.Status.Addresses {
		if !p.view.Knows(a.Network) {
			return false
		}
	}
	return true
}

// check has the workers look at an object that is not as it should be.
func (p *Publisher) check(name live.Name) {
	p.mu.Lock()
	waits := p.failed[name] > 0
	p.mu.Unlock()
	if !waits && !p.look(name).isNothing() {
		p.queue.Add(name)
	}
}

func (p *Publisher) work(ctx context.Context) bool {
	name, stop := p.queue.Get()
	if stop {
		return false
	}
	defer p.queue.Done(name)
	err := p.bring(ctx, p.look(name))
	if ctx.Err() != nil {
		return true
	}
	if again := p.count(name, err); again > 0 {
		p.Log.Debug("a reservation was not written", "object", name.String(), "again", again, "error", err)
		p.queue.AddAfter(name, again)
	}
	return true
}

// count remembers how a write went, and returns how long one that failed waits: a server that is away may be back any
// moment; one that says no will say so again.
func (p *Publisher) count(name live.Name, err error) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.failed, name)
		return 0
	}
	limit := time.Minute
	if isAway(err) {
		limit = 2 * time.Second
	}
	d := min(200*time.Millisecond<<min(p.failed[name], 10), limit)
	p.failed[name]++
	return wait.Jitter(d, 0.2)
}

// isAway tells whether the server gave no answer, or one that may be another the next time.
func isAway(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err)
}

// bring writes what is needed.
func (p *Publisher) bring(ctx context.Context, t task) error {
	if t.isNothing() {
		return nil // it was done while it was queued
	}
	if t.remove {
		err := p.Objects.Remove(ctx, t.there)
		p.Metrics.wrote("delete", err)
		return err
	}
	if t.change.Spec {
		err := p.Objects.ApplySpec(ctx, &t.want.Object)
		p.Metrics.wrote("spec", err)
		if err != nil {
			return err
		}
	}
	if t.change.Status {
		err := p.Objects.ApplyStatus(ctx, &t.want.Object)
		p.Metrics.wrote("status", err)
		if err != nil {
			return err
		}
		p.measure(t)
	}
	p.doubt(t)
	return nil
}

// doubt notes that the server has taken a configuration and changed nothing, though the object is not as it should be: a
// field that its CRD does not know, or one that somebody else insists on. It is not written again until one of them changes, a new list comes, or vainFor has passed:
// another CRD changes no object, and may end no watch so that it lists anew.
func (p *Publisher) doubt(t task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := live.Name{Namespace: t.want.Object.Namespace, Name: t.want.Object.Name}
	now, _ := p.Objects.Get(name)
	if t.there == nil || now == nil || now.ResourceVersion != t.there.ResourceVersion {
		delete(p.vain, name)
		return
	}
	v := attempt{t.want.Object, p.view.Now}
	v.object.ResourceVersion = now.ResourceVersion
	p.vain[name] = v
	p.Log.Warn("a reservation cannot be brought to what it should be: is the CRD of this version?", "object", name.String())
}

// measure notes how long a move of the pod was unknown to the API. What is only published again does not count.
func (p *Publisher) measure(t task) {
	if t.there != nil {
		a, b := t.want.Object.Status, t.there.Status
		if a.State == b.State && a.PodUID == b.PodUID && a.ID == b.ID {
			return
		}
	}
	now := p.Service.Clock()
	now.BootID = p.Service.Host.BootID()
	lag := now.Since(t.want.Since)
	if t.there == nil && lag > oldLease {
		return // an old lease, published for the first time or again
	}
	p.Metrics.lag.Observe(lag.Seconds())
}
