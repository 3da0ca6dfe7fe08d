package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

const (
	minInterval = 100 * time.Millisecond
	// retry is the time until a pass is repeated that could not read or change the store.
	retry = 5 * time.Second
	// servingRequests names the AddressRequests in the errors of the Publisher.
	servingRequests = "serving AddressRequests"
	// identityInterval is how often the node's UID is read. The UID changes if the node's object is
	// deleted and created again. The UID is also read after the API server has rejected a write,
	// because an agent may write only for the node of its token, and when the NodeAddressPool was
	// deleted, which the node owns.
	identityInterval = time.Hour
	// listInterval is the time between two lists of the node's reservations. The time is random, up
	// to half as much longer. The API server compares all IPReservations for a list, so there must
	// be few lists (docs/decisions.md, "Cost that does not grow with the nodes").
	listInterval = 12 * time.Hour
)

// Publisher is the task that makes the node's objects in the API equal to the node's store: its
// IPReservations and its NodeAddressPool. It does not watch the IPReservations, because the API
// server would have to compare each change of one for each node. It knows them from the responses
// to its own writes, reads those that the manager names in the NodeAddressPool, and lists all of
// the node at the start and every listInterval.
type Publisher struct {
	*retention.Node
	Pool *Pool
	// Active returns the status of each network that the container runtime has loaded, or nil
	// before the first result (use.Watcher.Result). It must not block.
	Active func() []cniconf.Status
	Writes *prometheus.CounterVec
	// Problem is what failed in the last pass, also if it is repeated after a pause.
	Problem daemon.Problem

	node   nodeIdentity // the UID is empty while it is not known
	nodeAt time.Time    // when the UID must be read
	// known are the node's IPReservations in the API, as they were last listed, read or written;
	// nil before the first list. Of a write they have what was applied, not what the API server
	// made of it: what a CRD of another version drops, or another controller changes, is written
	// again after the next list or read, not in each pass.
	known    map[kube.Name]*ipamv1.IPReservation
	listAt   time.Time                            // of the next list
	named    map[ipamv1.ReservationReference]bool // those that were read since the manager has named them
	pauses   map[string]pause                     // of what failed, by what attempt was called with in this pass
	before   map[string]pause                     // pauses after the last pass
	outage   kube.Outage                          // as the attempts of this pass show it
	api      pause                                // of all requests, after one that may succeed later
	rereadAt time.Time                            // when AddressRequests are read again that are not named
	requests map[kube.Name]namedRequest           // as they were read
	nodePool nodePool
}

// pause is the time after failed requests until the next one.
type pause struct {
	failures int // in a row
	until    time.Time
	err      error // of the last one
}

// after returns the pause after another failure. It grows up to 5 s if the server did not respond,
// because the server may be available again at any moment, and up to a minute if it rejected the
// request or has too many. It is random, up to twice as long.
func (p pause) after(err error, now time.Time) pause {
	limit := time.Minute
	if kube.IsTransient(err) && !apierrors.IsTooManyRequests(err) {
		limit = retry
	}
	d := min(time.Second<<min(p.failures, 10), limit)
	return pause{p.failures + 1, now.Add(wait.Jitter(d, 1)), err}
}

// attempt makes a request about one object, or changes its leases, unless that failed before and
// the pause is not over. What fails keeps nothing else from being done: attempt returns an error
// only if other requests would fail as well.
func (p *Publisher) attempt(what string, now time.Time, request func() error) error {
	if p.isPaused(what, now) {
		return nil
	}
	err := request()
	if isAway := p.outage.Observe(err); isAway || err == nil || kube.IsNotServed(err) {
		return err
	}
	p.pauses[what] = p.before[what].after(err, now)
	return nil
}

// isPaused reports whether something that has failed is not to be tried again yet.
func (p *Publisher) isPaused(what string, now time.Time) bool {
	before := p.before[what]
	isPaused := now.Before(before.until)
	if isPaused {
		p.pauses[what] = before
	}
	return isPaused
}

// failures returns what failed in a pass that ended with an error or nil: the first few things, so
// that the text is short, and the same in each pass.
func (p *Publisher) failures(err error) error {
	if kube.IsTransient(err) {
		err = errors.New("the API server cannot be reached, or has too many requests")
	}
	names := slices.Sorted(maps.Keys(p.pauses))
	for _, what := range names[:min(len(names), 3)] {
		err = errors.Join(err, fmt.Errorf("%s: %w", what, p.pauses[what].err))
	}
	if more := len(names) - 3; more > 0 {
		err = errors.Join(err, fmt.Errorf("and %d more", more))
	}
	return err
}

// NewWrites creates and registers the metric Publisher.Writes.
func NewWrites(r prometheus.Registerer) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{
		Name: "leasehold_publish_writes_total",
		Help: "Writes of IPReservations, by part (spec, status, delete) and result (ok, error).",
	}, []string{"what", "result"})
}

// Run publishes until ctx is done. active is sent when the result of Active has changed. Run
// returns ctx.Err().
func (p *Publisher) Run(ctx context.Context, active *daemon.Signal) error {
	wake := daemon.Any(p.Changes, active, &p.Pods.Changes, &p.Pool.Changes)
	return daemon.Loop(ctx, minInterval, wake, func(ctx context.Context) time.Duration {
		return max(p.pass(ctx, time.Now()), time.Millisecond)
	})
}

// pass reads what is due to be read, and writes what differs. It returns the time until the next
// pass, if nothing changes before.
func (p *Publisher) pass(ctx context.Context, now time.Time) (requeueAfter time.Duration) {
	if now.Before(p.api.until) {
		return p.api.until.Sub(now)
	}
	p.before, p.pauses, p.outage = p.pauses, map[string]pause{}, kube.Outage{}
	requeueAfter, err := p.reconcile(ctx, now)
	if ctx.Err() != nil {
		return 0
	}
	p.Problem.Log(p.Log, slog.LevelWarn, "publishing", p.failures(err))
	if err == nil {
		p.api = pause{}
		return requeueAfter
	}
	p.Log.Debug("publishing failed", "error", err)
	p.api, p.pauses = p.api.after(err, now), nil
	return p.api.until.Sub(now)
}

// reconcile makes one pass. It returns an error if a request failed that has to be repeated before
// any other.
func (p *Publisher) reconcile(ctx context.Context, now time.Time) (requeueAfter time.Duration, err error) {
	if err := p.read(ctx, now); err != nil {
		return 0, err
	}
	view, err := p.Service.List(ctx, func(lease.Lease) bool { return true })
	if err != nil {
		p.pauses["reading the leases"] = pause{err: err}
		return retry, nil
	}
	pods, _ := p.Pods.Views()
	plan := makePlan(p.node, view, pods, p.known)
	err = retention.End(ctx, p.Service.RevokePods, p.Log, plan.Release, "released by spec.release of its reservation")
	if err != nil {
		p.pauses["releasing addresses"] = pause{err: err, until: now.Add(retry)}
	}
	if !p.isPaused(servingRequests, now) {
		switch rest, err := p.serveRequests(ctx, view, now); {
		case kube.IsNotServed(err): // other kinds may be
			p.pauses[servingRequests] = p.before[servingRequests].after(err, now)
		case err != nil:
			return 0, err
		case len(p.requests) > 0:
			plan.requeueAfter(max(rest, 0))
		}
	}
	if err := p.write(ctx, plan, view, now); err != nil {
		if kube.IsNotServed(err) {
			p.listAt = time.Time{} // nothing is written until the objects are served again
		}
		return 0, err
	}
	plan.requeueAfter(p.writeNodePool(ctx, now))
	plan.requeueAfter(max(min(p.nodeAt.Sub(now), p.listAt.Sub(now)), 0))
	for _, pause := range p.pauses {
		if now.Before(pause.until) {
			plan.requeueAfter(pause.until.Sub(now))
		}
	}
	return plan.RequeueAfter, nil
}

// read reads the node's UID and the reservations of the node if it is time, and the reservations
// that the manager names.
func (p *Publisher) read(ctx context.Context, now time.Time) error {
	if err := p.identify(ctx, now); err != nil {
		return err
	}
	if !now.Before(p.listAt) {
		switch err := p.list(ctx); {
		case err == nil:
			p.before = nil // the CRD or the permissions may have changed
			p.listAt = now.Add(wait.Jitter(listInterval, 0.5))
		case p.known == nil || kube.IsNotServed(err):
			return fmt.Errorf("listing the node's reservations: %w", err)
		default: // what is known is written all the same
			p.Log.Debug("listing the node's reservations failed", "error", err)
			p.listAt = now.Add(wait.Jitter(time.Minute, 1))
		}
	}
	return p.readNamed(ctx, now)
}

// identify reads the node's UID, from the API server's watch cache, if it is time. If that fails,
// the last UID stays in use, except if the node does not exist. Without a UID nothing is published.
func (p *Publisher) identify(ctx context.Context, now time.Time) error {
	if now.Before(p.nodeAt) {
		return nil
	}
	uid, err := kube.GetUID(ctx, p.Clients.Core, "nodes", kube.Name{Name: p.Name}, "0")
	switch {
	case err == nil:
		p.node = nodeIdentity{p.Name, uid}
	case apierrors.IsNotFound(err):
		p.node = nodeIdentity{}
	}
	if p.node.UID == "" {
		return fmt.Errorf("reading the node: %w", err)
	}
	p.nodeAt = now.Add(wait.Jitter(identityInterval, 0.2))
	return nil
}

// write writes the objects that differ from the plan, and deletes those that are obsolete. It
// returns an error after which the other requests would fail as well.
func (p *Publisher) write(ctx context.Context, plan plan, view maintain.NodeView, now time.Time) error {
	writes := map[kube.Name]func() error{}
	for name, w := range plan.Objects {
		if parts := compare(&w.Object, p.known[name]); parts != nil {
			writes[name] = func() error { return p.writeParts(ctx, w, parts) }
		}
	}
	for name, existing := range p.known {
		if _, isWanted := plan.Objects[name]; !isWanted && p.isObsolete(existing, view) {
			writes[name] = func() error { return p.remove(ctx, existing) }
		}
	}
	for name, write := range writes {
		err := p.attempt("writing reservation "+name.String(), now, func() error {
			err := write()
			switch {
			case kube.IsNotServed(err):
			case apierrors.IsForbidden(err):
				p.nodeAt = time.Time{}
			case apierrors.IsNotFound(err) && p.known[name] != nil:
				// It was deleted, and others may have been as well.
				delete(p.known, name)
				p.listAt = now.Add(wait.Jitter(time.Second, 1))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeParts writes the parts of an object that differ, or ends the holds of a deleted namespace.
func (p *Publisher) writeParts(ctx context.Context, w wanted, parts []string) error {
	if ended, err := p.endDeleted(ctx, w); ended || err != nil {
		return err
	}
	for _, part := range parts {
		if err := p.apply(ctx, &w.Object, part); err != nil {
			return err
		}
	}
	return nil
}

// endDeleted ends the holds of a pod whose namespace was deleted, and reports whether there were
// any. It reads the namespace only if the object is missing, because a namespace is deleted with
// all objects in it. A namespace that was created again under the name has another UID.
func (p *Publisher) endDeleted(ctx context.Context, w wanted) (ended bool, err error) {
	o := w.Object
	if o.Status.State != ipamv1.Held || p.known[kube.Name{Namespace: o.Namespace, Name: o.Name}] != nil {
		return false, nil
	}
	uid, err := retention.ReadNamespaceUID(ctx, p.Clients.Core, o.Namespace)
	isOther := func(l lease.Lease) bool { return !retention.IsOfDeletedNamespace(l, uid) }
	deleted := slices.DeleteFunc(slices.Clone(w.Leases), isOther)
	if err != nil || len(deleted) == 0 {
		return false, err
	}
	return true, retention.End(ctx, p.Service.EndHolds, p.Log, deleted, retention.NamespaceDeleted)
}

// isObsolete reports whether an object that is not in the plan may be deleted. It must belong to
// this node, not to an earlier one of the same name. The store must know all leases of the networks
// in the object (maintain.NodeView.Imported), or leasehold must not have used them. Otherwise the
// leases may have been lost with the store, and may be recovered.
func (p *Publisher) isObsolete(existing *ipamv1.IPReservation, view maintain.NodeView) bool {
	if existing.Spec.NodeName != p.node.Name || existing.Spec.NodeUID != p.node.UID {
		return false
	}
	return !slices.ContainsFunc(existing.Status.Addresses, func(a ipamv1.Address) bool {
		return !view.Imported(a.Network) && !p.isUnused(a.Network, view)
	})
}

// isUnused reports whether leasehold serves a network, but was not called for it since it was
// installed: the store is not a successor of a lost one, and host-local's directory has no mark.
// The object is of an earlier installation, which has ended its leases when it was removed.
func (p *Publisher) isUnused(network string, view maintain.NodeView) bool {
	return !view.Lost && slices.ContainsFunc(p.Active(), func(s cniconf.Status) bool {
		return s.State == cniconf.Active && s.Pool.Network == network && !hostlocal.IsMarked(s.Pool)
	})
}

func (p *Publisher) wrote(what string, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	p.Writes.WithLabelValues(what, result).Inc()
}
