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

	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/notify"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	minInterval = 100 * time.Millisecond
	retry       = 5 * time.Second
	workers     = 4
	// identityInterval is how often the node's UID is read. The UID changes if the node's object is
	// deleted and created again. The UID is also read after the API server has forbidden a write,
	// because an agent may write only for the node of its token, and when the NodeAddressPool was
	// deleted, which the node owns.
	identityInterval = time.Hour
	// maxLag is the age of a lease above which the creation of its object is not recorded as a lag,
	// because the agent or the CRD may have been installed after the lease was made.
	maxLag = time.Minute
	// noEffectInterval is the time after which an apply that did not change the object is repeated.
	noEffectInterval = 10 * time.Minute
)

// identityBackoff is the time until a failed read of an unknown UID of the node is repeated, which
// is at most two minutes.
var identityBackoff = wait.Backoff{Duration: retry, Factor: 2, Jitter: 1, Steps: 10, Cap: time.Minute}

// Publisher is the task that writes the node's IPReservations, and reads the node's UID. Each pass
// computes a plan and queues the names of the objects that differ from it. The workers write these
// objects.
type Publisher struct {
	Service *maintain.Service
	Node    string
	Core    rest.Interface
	Pods    *podcache.Pods
	Objects *Objects
	Active  func() []cniconf.Status // as active.Watcher.Result
	Log     *slog.Logger
	Metrics *Metrics

	queue    workqueue.TypedDelayingInterface[informer.Name]
	identity notify.Signal // sent when node has changed
	reread   notify.Signal // sent when the node must be read
	again    wait.Backoff  // of failed reads of node
	problem  string        // the last problem that was logged, "" if it is over

	mu       sync.Mutex
	lists    int                   // Objects.Lists at the last pass
	failed   map[informer.Name]int // failed writes in a row of each object that waits for its retry
	noEffect map[informer.Name]attempt
	node     nodeIdentity // the UID is empty while it is not known
	plan     map[informer.Name]wanted
	view     maintain.NodeView // from which the plan was made, without leases and windows
}

// attempt is an apply that did not change the object. It contains the desired object with the
// resource version of the existing one, and the time.
type attempt struct {
	object ipamv1.IPReservation
	at     lease.Instant
}

// Metrics are the metrics of the publisher.
type Metrics struct {
	lag    prometheus.Histogram
	writes *prometheus.CounterVec
}

// NewMetrics creates and registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "leasehold_publish_lag_seconds",
			Help: "Time from a pod getting or releasing its addresses until its IPReservation shows it, without the " +
				"5 s for which a pod that is away is expected back. Returns to an address are not counted.",
			Buckets: []float64{.1, .25, .5, 1, 2, 5, 10, 30, 60, 300},
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leasehold_publish_writes_total",
			Help: "Writes of IPReservations, by part (spec, status, delete) and result (ok, error).",
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

// Run publishes until ctx is done, and then waits for its workers. changes receives a value when
// the store has changed. Run returns ctx.Err().
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
	wake := informer.Any(ctx, changes, p.Pods.Changes(), p.Objects.Changes(), p.identity.Subscribe())
	running.Go(func() { _ = informer.Loop(ctx, retry, p.reread.Subscribe(), p.identify) })
	return informer.Loop(ctx, minInterval, wake, p.pass)
}

func (p *Publisher) begin() {
	p.queue = workqueue.NewTypedDelayingQueue[informer.Name]()
	p.failed, p.noEffect = map[informer.Name]int{}, map[informer.Name]attempt{}
	p.again = identityBackoff
}

// pass makes a plan, queues the objects that must be written, and releases the addresses that users
// have requested. It returns the time until the next pass, or 0 if no pass is necessary before the
// next change.
func (p *Publisher) pass(ctx context.Context) (requeueAfter time.Duration) {
	p.resetFailures(p.Objects.Lists())
	existing, listed := p.Objects.Views()
	if !listed {
		return 0 // the objects have not been listed yet
	}
	p.mu.Lock()
	node := p.node
	p.mu.Unlock()
	if node.UID == "" {
		return 0 // identify starts a pass when the UID is known
	}
	view, err := p.Service.List(ctx, lease.Lease.IsRetained)
	if store.IsEmpty(err) {
		view, err = maintain.NodeView{}, nil // Adopted reports false for all networks
	}
	if err != nil {
		p.logProblem("reading the leases failed, reservations not updated", err)
		return retry
	}
	pods, _ := p.Pods.Views()
	plan := makePlan(node, view, pods, existing)
	p.set(plan, view)
	for name := range plan.Objects {
		p.enqueue(name)
	}
	for name := range existing {
		p.enqueue(name)
	}
	err = p.release(ctx, plan.Release)
	p.logProblem("releasing addresses failed", err)
	if err != nil {
		return retry
	}
	return plan.next()
}

// next returns the time until the next pass if nothing changes before. The time is at most about
// noEffectInterval, so that an apply that had no effect is repeated.
func (plan *plan) next() time.Duration {
	plan.requeueAfter(wait.Jitter(noEffectInterval, 0.5))
	return plan.RequeueAfter
}

// logProblem logs the error of a pass when it occurs first, when it changes, and when it is over.
// err is nil after a pass without an error.
func (p *Publisher) logProblem(message string, err error) {
	text := ""
	if err != nil {
		text = message + ": " + err.Error()
	}
	switch {
	case text == p.problem:
		return
	case err != nil:
		p.Log.Warn(message, "error", err)
	default:
		p.Log.Info("updating reservations works again")
	}
	p.problem = text
}

// set makes the plan available to the workers. It removes from noEffect the attempts that are out
// of date.
func (p *Publisher) set(plan plan, view maintain.NodeView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	view.Leases, view.Windows = nil, nil
	p.plan, p.view = plan.Objects, view
	maps.DeleteFunc(p.noEffect, func(name informer.Name, v attempt) bool {
		_, wanted := p.plan[name]
		return !wanted || view.Now.Since(v.at) >= noEffectInterval
	})
}

// NodeUID returns the UID of the node, "" if it is not known.
func (p *Publisher) NodeUID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node.UID
}

// Identified returns a channel that receives a value when the UID of the node has changed.
func (p *Publisher) Identified() <-chan struct{} { return p.identity.Subscribe() }

// Reread makes the task read the UID of the node soon.
func (p *Publisher) Reread() { p.reread.Send() }

// identify reads the node's UID, and returns the time until the next read. If the read fails, the
// last UID stays in use, except if the node does not exist. Only an unknown UID is read again soon.
// identify runs in a separate loop, because its request may take up to RequestTimeout, and passes
// must not wait for it.
func (p *Publisher) identify(ctx context.Context) (requeueAfter time.Duration) {
	uid, err := readNodeUID(ctx, p.Core, p.Node)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		if now := (nodeIdentity{p.Node, uid}); now != p.node {
			p.node = now
			p.identity.Send()
		}
		p.again = identityBackoff
		return wait.Jitter(identityInterval, 0.2)
	case apierrors.IsNotFound(err):
		p.node = nodeIdentity{}
	case p.node.UID != "":
		return wait.Jitter(identityInterval, 0.2)
	}
	if ctx.Err() == nil {
		p.Log.Warn("reading the node failed, reservations not updated", "error", err)
	}
	return p.again.Step()
}

// release ends the retention of the given pods' leases, as spec.release of their objects requests.
func (p *Publisher) release(ctx context.Context, pods [][]maintain.Ref) error {
	err := p.Service.RevokePods(ctx, pods, "released by spec.release of its reservation")
	if err != nil {
		return err
	}
	for _, r := range slices.Concat(pods...) {
		p.Log.Info("address released by spec.release", "address", r.Address.String(), "lease", r.ID)
	}
	return nil
}

// task contains the changes of one object.
type task struct {
	want     *wanted
	existing *ipamv1.IPReservation
	change   change
	remove   bool
}

func (t task) isEmpty() bool { return t.change == change{} && !t.remove }

// taskFor returns the changes that make one object equal to the last plan. It is empty if the
// object is up to date, or if the same apply had no effect before.
func (p *Publisher) taskFor(name informer.Name) task {
	p.mu.Lock()
	defer p.mu.Unlock()
	existing, _ := p.Objects.Get(name.String())
	t := task{existing: existing}
	if w, ok := p.plan[name]; ok {
		t.want, t.change = &w, compare(&w.Object, existing)
		v, tried := p.noEffect[name]
		isUnchanged := tried && existing != nil && v.object.ResourceVersion == existing.ResourceVersion
		if isUnchanged && compare(&w.Object, &v.object) == (change{}) {
			t.change = change{}
		}
		return t
	}
	// An object without leases is removed only if it belongs to this node. That excludes an earlier
	// node with the same name.
	isOurs := existing != nil && existing.Spec.NodeName == p.node.Name && existing.Spec.NodeUID == p.node.UID
	t.remove = isOurs && p.isObsolete(existing)
	return t
}

// resetFailures makes objects whose write failed or had no effect due again if the informer has
// received a new list. After a new list the API server is available again, or the CRD may have
// changed.
func (p *Publisher) resetFailures(lists int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if lists != p.lists {
		p.lists = lists
		clear(p.failed)
		clear(p.noEffect)
	}
}

// isObsolete reports whether an object that is not in the plan may be deleted. It may be if the
// store knows all leases of the networks in the object (maintain.NodeView.Adopted), or leasehold
// has not used them. Otherwise the leases may have been lost with the store, and may be recovered.
func (p *Publisher) isObsolete(existing *ipamv1.IPReservation) bool {
	if len(existing.Status.Addresses) == 0 {
		return !p.view.Now.IsZero()
	}
	for _, a := range existing.Status.Addresses {
		if !p.view.Adopted(a.Network) && !p.isUnused(a.Network) {
			return false
		}
	}
	return true
}

// isUnused reports whether leasehold serves a network, but was not called for it since it was
// installed: the store is not a successor of a lost one, and host-local's directory has no mark.
// The object is of an earlier installation, which has ended its leases when it was removed.
func (p *Publisher) isUnused(network string) bool {
	return !p.view.Lost && slices.ContainsFunc(p.Active(), func(s cniconf.Status) bool {
		return s.State == cniconf.Active && s.Pool.Network == network && !hostlocal.IsMarked(s.Pool)
	})
}

// enqueue queues an object for the workers if it must be written. It does nothing for an object
// whose write failed, because that is queued with a delay.
func (p *Publisher) enqueue(name informer.Name) {
	p.mu.Lock()
	waits := p.failed[name] > 0
	p.mu.Unlock()
	if !waits && !p.taskFor(name).isEmpty() {
		p.queue.Add(name)
	}
}

// work writes one object from the queue, and queues it again if the write fails. It reports false
// when the queue is shut down.
func (p *Publisher) work(ctx context.Context) bool {
	name, stop := p.queue.Get()
	if stop {
		return false
	}
	defer p.queue.Done(name)
	if !p.Objects.Served() {
		return true // the pass after the next list queues it again
	}
	err := p.write(ctx, p.taskFor(name))
	if ctx.Err() != nil {
		return true
	}
	if apierrors.IsForbidden(err) {
		p.Reread()
	}
	if retryAfter := p.backoff(name, err); err != nil {
		p.Log.Debug("writing a reservation failed", "object", name.String(), "retryAfter", retryAfter, "error", err)
		p.queue.AddAfter(name, retryAfter)
	}
	return true
}

// backoff records the result of a write, and returns the time until its retry, or 0 if it
// succeeded. The time grows with each failure in a row, up to 5 s if the server did not respond,
// because it may be available again at any moment, and up to a minute if the server rejected the
// request or has too many. It is random, up to twice as long.
func (p *Publisher) backoff(name informer.Name, err error) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		delete(p.failed, name)
		return 0
	}
	limit := time.Minute
	if isTransient(err) && !apierrors.IsTooManyRequests(err) {
		limit = 5 * time.Second
	}
	d := min(200*time.Millisecond<<min(p.failed[name], 10), limit)
	p.failed[name]++
	return wait.Jitter(d, 1)
}

// isTransient reports whether a retry of the request may succeed soon: the server did not respond,
// or it responded that it was unable to process the request.
func isTransient(err error) bool {
	var status apierrors.APIStatus
	return err != nil && !errors.As(err, &status) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err)
}

// write makes the changes of the task, and records them in the metrics. It returns the first error.
func (p *Publisher) write(ctx context.Context, t task) error {
	if t.isEmpty() {
		return nil // the object was updated while its name was queued
	}
	if t.remove {
		err := p.Objects.Remove(ctx, t.existing)
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
		p.observeLag(t)
	}
	p.checkEffect(t)
	return nil
}

// checkEffect records in noEffect that an apply succeeded without a change of the object, although
// the object differs from the plan. The reasons are a CRD that lacks a field, or another controller
// that sets the same field to another value. Such an object is written again when the object or the
// plan changes, a new list is received, or noEffectInterval has passed. The interval is necessary
// because a new version of the CRD changes no object, and might not cause a new list.
func (p *Publisher) checkEffect(t task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := informer.Name{Namespace: t.want.Object.Namespace, Name: t.want.Object.Name}
	now, _ := p.Objects.Get(name.String())
	if t.existing == nil || now == nil || now.ResourceVersion != t.existing.ResourceVersion {
		delete(p.noEffect, name)
		return
	}
	v := attempt{t.want.Object, p.view.Now}
	v.object.ResourceVersion = now.ResourceVersion
	p.noEffect[name] = v
	p.Log.Warn("applying a reservation had no effect; check the version of the CRD", "object", name.String())
}

// observeLag records the time from a change of the pod's addresses until it became visible in the
// API. It records nothing if the existing object already shows the same state, pod UID and id, and
// nothing for a pod that has returned, because its return is shown when the pod is confirmed.
func (p *Publisher) observeLag(t task) {
	if t.existing != nil {
		a, b := t.want.Object.Status, t.existing.Status
		isReturn := a.State == ipamv1.Bound && b.State == ipamv1.Held
		if a.ID == b.ID && (isReturn || a.State == b.State && a.PodUID == b.PodUID) {
			return
		}
	}
	lag := p.Service.Clock().Since(t.want.Since)
	wasBound := t.existing != nil && t.existing.Status.State == ipamv1.Bound && t.existing.Status.Confirmed
	if wasBound && t.want.Object.Status.State == ipamv1.Held && lag >= ipamv1.ReturnDelay {
		lag -= ipamv1.ReturnDelay
	}
	if t.existing == nil && lag > maxLag {
		return // see maxLag
	}
	p.Metrics.lag.Observe(lag.Seconds())
}
