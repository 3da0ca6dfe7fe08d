package ipam

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Host is what the use cases ask the kernel: *sandbox.Host, or a simulated one
// beside the real one in tests.
type Host interface {
	BootID() string
	Netns(path string) (lease.Netns, error)
	QuickState(holder lease.Holder, boot string) lease.Liveness
	PathGone(holder lease.Holder) (bool, error)
	AddressesIn(netns lease.Netns) ([]netip.Addr, error)
	ProcessNetns() sandbox.NetnsSet
	MountedNetns() sandbox.NetnsSet
	Namespaces() ([]sandbox.Namespace, error)
	NamespaceIDs(boot string) string
	ProveView(word, boot string, bound iter.Seq[lease.Lease]) error
	ForgetNeighbours([]netip.Addr) error
}

// Service performs the use cases on one node's store.
type Service struct {
	Store *store.Store
	Host  Host
	// Plugin is set for the plugin itself: it runs where the container runtime
	// runs, so its own view of the host is the one that counts. Everybody else
	// has to prove theirs before evidence may change a lease.
	Plugin bool
	// Clock reads both clocks and the boot id. It is called once in each transaction.
	Clock func() lease.Instant
	// CacheDirs are where libcni keeps its results; nil for the usual places.
	CacheDirs []string
	// Warn gets what an operator should know and no caller can be told; may be nil.
	Warn func(string)
}

func (s *Service) warn(format string, args ...any) {
	if s.Warn != nil {
		s.Warn(fmt.Sprintf(format, args...))
	}
}

// call is one use case inside its transaction.
type call struct {
	evidence
	plugin   bool // see Service
	tx       *store.Tx
	store    *store.Store // for what lies beside the leases
	node     adopt.Node   // what the host shows
	now      lease.Instant
	mirrors  *mirrors
	export   map[lease.Pool]*hostlocal.Dir        // to be brought in step as a whole
	whole    map[lease.Pool]bool                  // those that were whole before
	journal  map[networkAddress]hostlocal.History // nil until it is needed
	repaired bool                                 // damaged records were, as far as they can be
}

// update runs a use case in a write transaction. A record that it needs and
// that is damaged is repaired first. Where that fails, only what needs the record fails.
func (s *Service) update(ctx context.Context, in scope, fn func(*call) error) error {
	ctx = store.WithMaxWait(ctx) // host-local's lock counts into it
	err := s.transact(ctx, in, fn)
	if !errors.Is(err, store.ErrDamaged) {
		return err
	}
	s.warn("%v; it is learnt again from this node", err)
	repairErr := s.transact(ctx, scope{wait: in.wait}, func(c *call) error { return c.repair(in) })
	err = s.transact(ctx, in, func(c *call) error {
		c.repaired = true
		return fn(c)
	})
	if repairErr == nil {
		return err
	}
	s.warn("it cannot be repaired: %v", repairErr)
	if errors.Is(err, store.ErrDamaged) {
		return repairErr
	}
	return err
}

// transact runs a use case after the housekeeping that any of them begins with,
// and brings host-local's files in step.
//
// Where host-local's lock of a network that the use case needs is busy for more than
// a moment, it is waited for without the store's lock, which calls of other networks
// need, and the use case begins anew. Whoever names a wait of its own has no time
// for that.
func (s *Service) transact(ctx context.Context, in scope, fn func(*call) error) error {
	m := newMirrors(ctx, in.wait, s.warn)
	defer m.release()
	for {
		err := s.attempt(ctx, in, m, fn)
		var busy *busyError
		if in.wait > 0 || !errors.As(err, &busy) || isOver(ctx) {
			return err
		}
		if err := m.await(busy.pool); err != nil {
			return err
		}
	}
}

// isOver reports whether the time of a call has run out.
func isOver(ctx context.Context) bool {
	until, bounded := ctx.Deadline()
	return ctx.Err() != nil || bounded && !time.Now().Before(until)
}

// attempt is one transaction of transact.
func (s *Service) attempt(ctx context.Context, in scope, m *mirrors, fn func(*call) error) error {
	var spooled []store.Spooled
	err := s.Store.Update(ctx, func(tx *store.Tx) (err error) {
		m.reset()
		c := s.newCall(tx, in, m)
		if err := c.learn(in); err != nil {
			return err
		}
		if spooled, err = s.replay(c); err != nil {
			return err
		}
		if err := fn(c); err != nil {
			return err
		}
		c.exportAll()
		return nil
	})
	if err != nil {
		return err
	}
	m.finish()
	if err := s.Store.Unspool(spooled); err != nil {
		s.warn("%v", err)
	}
	return nil
}

func (s *Service) newCall(tx *store.Tx, in scope, m *mirrors) *call {
	now := s.Clock()
	return &call{
		evidence: newEvidence(s.Host, now.BootID, boundBy(tx)),
		plugin:   s.Plugin,
		tx:       tx, store: s.Store, node: s.node(in), now: now, mirrors: m,
		export: map[lease.Pool]*hostlocal.Dir{}, whole: map[lease.Pool]bool{},
	}
}

func (s *Service) node(in scope) adopt.Node {
	dirs := s.CacheDirs
	if dirs == nil {
		dirs = adopt.DefaultCacheDirs
	}
	return adopt.Node{Host: s.Host, CacheDirs: append(slices.Clone(dirs), in.caches...)}
}

// replay performs the releases that the store could not take when they came, and
// returns them. One whose lease is damaged stays in the spool until that is repaired:
// every call begins here, the one that repairs as well. So does one of a network
// whose files are locked: that is no trouble of this call's network.
func (s *Service) replay(c *call) (done []store.Spooled, err error) {
	spooled, err := s.Store.Spooled(c.now.BootID)
	if err != nil {
		s.warn("%v", err)
	}
	for _, r := range spooled {
		switch err := c.release(Attachment{r.ContainerID, r.IfName}, r.At, "DEL, replayed"); {
		case errors.Is(err, store.ErrDamaged), errors.Is(err, store.ErrBusy):
			s.warn("the DEL of container %s has to wait: %v", r.ContainerID, err)
		case err != nil:
			return nil, err
		default:
			done = append(done, r)
		}
	}
	return done, nil
}

// move applies an event, writes the outcome and tells the journal. It returns
// what the lease became.
func (c *call) move(l lease.Lease, e lease.Event, ev store.Event, reason string) (lease.Lease, error) {
	return c.moveAt(l, e, ev, reason, c.now)
}

func (c *call) moveAt(l lease.Lease, e lease.Event, ev store.Event, reason string,
	at lease.Instant) (lease.Lease, error) {
	next, err := lease.Apply(l, e, at)
	if err != nil {
		return l, err
	}
	return next, c.record(l, next, ev, reason)
}

// record writes a lease that has changed, with its line in the journal.
func (c *call) record(old, next lease.Lease, ev store.Event, reason string) error {
	if err := c.put(old, next); err != nil {
		return err
	}
	return c.log(old, ev, reason)
}

func (c *call) log(about lease.Lease, ev store.Event, reason string) error {
	entry := store.About(about, ev, c.now, reason)
	if err := c.tx.Log(entry); err != nil {
		return err
	}
	c.addHistory(entry)
	if name, ok := counted[ev]; ok {
		return c.tx.Count(name, 1)
	}
	return nil
}

// counted are the events that metrics count (leasehold_leases_*_total).
var counted = map[store.Event]string{
	store.EventKept:       "leases/kept",
	store.EventTakenOver:  "leases/kept",
	store.EventSuperseded: "leases/changed",
	store.EventExpired:    "leases/expired",
	store.EventOrphaned:   "leases/orphaned",
	store.EventLimited:    "leases/limited",
	store.EventRecovered:  "leases/recovered",
}
