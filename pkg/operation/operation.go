package operation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/rundir"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Host provides the state of the kernel: *host.Host, or a simulated one in tests.
type Host interface {
	host.Kernel
	Netns(path string) (lease.Netns, error)
	NamespaceIDs(boot string) string
	ProveView(word, boot string, bound iter.Seq[lease.Lease]) error
	ForgetNeighbours([]netip.Addr) error
}

// Node is the store and the host of one node. The Service types of the packages ipam and maintain
// have the operations.
type Node struct {
	Store *store.Store
	Host  Host
	// Plugin is set in the plugin, which runs in the namespaces of the container runtime and
	// therefore sees the host. Other programs must prove that they see the host before they may
	// change a lease because of its holder's state (Call.ProveView).
	Plugin bool
	// Clock reads both clocks and the boot id. It is called once in each transaction.
	Clock func() lease.Instant
	// CacheDirs are the directories of libcni's cache; nil for the default ones.
	CacheDirs []string
	// Warn is called with warnings for operators; it may be nil.
	Warn func(string)
}

// Warnf passes a warning to Warn.
func (n *Node) Warnf(format string, args ...any) {
	if n.Warn != nil {
		n.Warn(fmt.Sprintf(format, args...))
	}
}

// Call is one attempt of an operation, in its transaction.
type Call struct {
	Tx       *store.Tx
	Now      lease.Instant
	Evidence host.Evidence
	// Repaired is set if damaged records were repaired, as far as possible, before this attempt.
	Repaired bool

	node    *Node
	scope   Scope
	sources importer.Sources // without the directories that only the configuration of a pool names
	files   *addressFiles
	used    map[lease.Pool]bool // see SetUsed
	// keep, which may be nil, has an import go on in the next transaction, once this one is
	// committed; converted are the files of the Kruise fork that an import has used.
	keep      func()
	converted []string
	// given reports whether this attempt has made the lease of an address, which had none, from
	// what the host shows.
	given map[lease.Place]bool
	// start is when the attempt began, and steps the number of calls of Step; more is set if the
	// operation has to run again, in another transaction.
	start time.Time
	steps int
	more  bool
	// earlier are the containers that the journal has of earlier boots, ended is the time of its
	// last entry of those, and began the earliest one of its entries of this boot. earlier is nil
	// until it is needed.
	earlier      map[former]bool
	ended, began time.Time
}

// Update runs an operation in a write transaction, and writes the address files of the leases that
// it changes. It makes another attempt, in which the operation runs again,
//
//   - if the operation needs a damaged record, after the attempt to repair it;
//   - if host-local's lock of a pool is busy for more than lockMoment, after it has waited for that
//     lock without holding the store's, which calls of other networks need;
//   - if the sources of the host have to be read for an import, after it has read them in the same
//     way;
//   - if leases were imported, or there is too much to do for one transaction, after what was done
//     is committed;
//   - if store.Store.Update runs it again.
func (n *Node) Update(ctx context.Context, in Scope, fn func(*Call) error) error {
	ctx = files.WithMaxWait(ctx) // the limit includes waiting for host-local's lock
	f := newFiles(ctx, n.Warnf)
	defer f.release()
	repaired := in.isRepair
	var unrepaired error
	for {
		var applied []rundir.QueuedDEL
		var c *Call
		err := n.Store.Update(ctx, func(tx *store.Tx) (err error) {
			f.reset()
			f.store, f.owner = tx.ID(), n.owner(tx.ID())
			c = n.newCall(tx, in, f)
			c.Repaired, tx.Then = repaired, c.finish
			applied, err = c.run(in, fn)
			return err
		})
		if err == nil {
			f.finishLate()
			if e := n.Store.Run().RemoveDELs(applied); e != nil {
				n.Warnf("%v", e)
			}
			if e := importer.Convert(c.converted); e != nil {
				n.Warnf("reservations of the Kruise fork were imported, and are still in its directory: %v", e)
			}
		}
		var busy *BusyError
		var unread *unreadError
		switch {
		case errors.As(err, &busy) && !isOver(ctx):
			if err := f.await(busy.Pool); err != nil {
				return err
			}
		case errors.As(err, &unread):
			if err := n.readSources(f, unread.scope); err != nil {
				return err
			}
		case err == nil && c.more:
			time.Sleep(stepPause)
		case !errors.Is(err, store.ErrDamaged):
			return err
		case repaired:
			return cmp.Or(unrepaired, err)
		default:
			n.Warnf("%v; it is imported again from this node", err)
			f.release()
			if unrepaired = n.repair(ctx, in); unrepaired != nil {
				n.Warnf("it cannot be repaired: %v", unrepaired)
			}
			repaired = true
		}
	}
}

// isOver reports whether the time of a call has run out.
func isOver(ctx context.Context) bool {
	until, bounded := ctx.Deadline()
	return ctx.Err() != nil || bounded && !time.Now().Before(until)
}

// run imports the pool if necessary, applies the queue, and runs the operation. Then it writes the
// files that have to be written before the commit. It returns the DELs that were applied.
func (c *Call) run(in Scope, fn func(*Call) error) (applied []rundir.QueuedDEL, err error) {
	if err = c.importUnknown(in); err == nil {
		applied, err = c.node.applyQueue(c)
	}
	if err == nil {
		err = fn(c)
	}
	if c.more = errors.Is(err, errMore); c.more {
		err = nil
	}
	if err == nil {
		c.writeBefore()
	}
	return applied, err
}

const (
	// fewSteps is the number of steps that an attempt takes however long they take.
	fewSteps = 100
	// stepPause is the pause between two attempts, in which calls that wait get the store's lock:
	// flock(2) wakes them, but keeps the lock for nobody.
	stepPause = 10 * time.Millisecond
)

// stepsTime is how long an attempt takes more than fewSteps steps. Tests change it.
var stepsTime = 50 * time.Millisecond

var errMore = errors.New("the operation has to go on in another transaction")

// Step is called for each of many steps, but not for those that the next attempt would repeat. It
// returns an error, which the operation returns, once the attempt has held the store's lock for
// long, which calls of other networks need. Then what was done is committed, and the operation runs
// again in another transaction.
func (c *Call) Step() error {
	if c.steps++; c.steps <= fewSteps || time.Since(c.start) < stepsTime {
		return nil
	}
	return errMore
}

// SetUsed has the store's mark of this boot name the pool, in which the call gives an address or
// finds one that is in use (rundir.Dir.SetUsed), once the call is committed. After a call that was
// not, nothing needs the mark, and it would stop the pool if the store was lost before.
func (c *Call) SetUsed(p lease.Pool) { c.used[p] = true }

// finish does what follows the commit.
func (c *Call) finish() {
	if c.keep != nil {
		c.keep()
	}
	c.files.finish()
	for p := range c.used {
		if err := c.node.Store.Run().SetUsed(p); err != nil {
			c.node.Warnf("%v", err)
		}
	}
}

// Repair replaces damaged records by what the host shows, and builds the indexes again. It returns
// ErrNoHostView if the process is not proven to see the namespaces of the host.
func (n *Node) Repair(ctx context.Context) error { return n.repair(ctx, Scope{}) }

// repair is Repair for a call, which needs a damaged record.
func (n *Node) repair(ctx context.Context, in Scope) error {
	return n.Update(ctx, Scope{isRepair: true}, func(c *Call) error { return c.repair(in) })
}

func (n *Node) newCall(tx *store.Tx, in Scope, f *addressFiles) *Call {
	now := n.Clock()
	if in.Pool == (lease.Pool{}) {
		in.CoolDown = policy.Defaults().CoolDown
	}
	return &Call{
		Evidence: host.NewEvidence(n.Host, now.BootID, tx.Bound()),
		Tx:       tx, Now: now, start: time.Now(), node: n, scope: in, sources: n.sources(nil), files: f,
		given: map[lease.Place]bool{}, used: map[lease.Pool]bool{},
	}
}

// sources returns the sources of the host. caches are the directories of libcni's cache that the
// configuration of a pool names.
func (n *Node) sources(caches []string) importer.Sources {
	dirs := n.CacheDirs
	if dirs == nil {
		dirs = importer.DefaultCacheDirs
	}
	return importer.Sources{Netns: n.Host.Netns, Namespaces: sync.OnceValues(n.Host.Namespaces),
		CacheDirs: slices.Concat(dirs, caches)}
}

// sourcesOf returns the sources for the files of a pool, with the directories of libcni's cache
// that its configuration names, or named when the pool was last used.
func (c *Call) sourcesOf(p lease.Pool) importer.Sources {
	s, caches := c.sources, c.Tx.CacheDirs(p)
	if p == c.scope.Pool {
		caches = slices.Concat(caches, c.scope.Caches)
	}
	s.CacheDirs = slices.Concat(s.CacheDirs, caches)
	return s
}

// Record writes a lease that has changed, and adds a journal entry with the time at.
func (c *Call) Record(old, next lease.Lease, ev store.Event, at lease.Instant, reason string) error {
	stored, err := c.put(old, next)
	if err != nil || !stored {
		return err
	}
	return c.logAt(old, ev, reason, at)
}

// Put writes a changed lease to the store, and has host-local's file of its address written.
//
// If the file names another container than the lease, because host-local has assigned the address,
// the lease is replaced by one of that container instead. The holder of a bound lease that stays
// with it, in the same network namespace, keeps it.
func (c *Call) Put(old, next lease.Lease) error {
	_, err := c.put(old, next)
	return err
}

// put is Put. It reports whether next was stored.
func (c *Call) put(old, next lease.Lease) (stored bool, err error) {
	at := next.Place()
	if next.State == lease.None {
		at = old.Place()
	}
	if old.State == lease.None { // it was imported before
		c.files.changed[at] = true
		return true, c.Tx.Put(at.Pool, at.Address, next)
	}
	keeps := old.State == lease.Bound && next.State == lease.Bound && (old.Holder == next.Holder ||
		old.Holder.Is(next.Holder) && old.Holder.Netns.Same(next.Holder.Netns))
	holder := isGone
	if keeps {
		holder = func() lease.Liveness { return c.Evidence.Prove(old) }
	}
	switch v, f, err := c.compare(at, old, holder); {
	case errors.Is(err, store.ErrBusy):
		return false, err
	case err == nil && v == given:
		return false, c.give(at, old, f, false)
	case err == nil && (v == disputed || keeps && v != follow): // its file is another's, or missing
	default:
		c.files.changed[at] = true
	}
	return true, c.Tx.Put(at.Pool, at.Address, next)
}

// Change applies an event that ends nothing to a lease, writes it, and reports whether that has
// changed the lease. It ignores an event that is not possible.
func (c *Call) Change(l lease.Lease, e lease.Event) (next lease.Lease, changed bool, err error) {
	next, err = lease.Apply(l, e, c.Now)
	if err != nil || reflect.DeepEqual(next, l) {
		return l, false, nil
	}
	return next, true, c.Put(l, next)
}

// Log adds an entry about a lease to the journal, and adds to the counter of the event if there is
// one.
func (c *Call) Log(about lease.Lease, ev store.Event, reason string) error {
	return c.logAt(about, ev, reason, c.Now)
}

// logAt is Log for an event at another time: that of a queued DEL.
func (c *Call) logAt(about lease.Lease, ev store.Event, reason string, at lease.Instant) error {
	err := cmp.Or(c.Tx.BeginBoot(c.Now.BootID), c.Tx.Log(store.About(about, ev, at, reason)))
	if name, ok := counted[ev]; ok {
		err = cmp.Or(err, c.Tx.Count(name, 1))
	}
	return err
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

// NewID returns a new ID for a lease. IDs are unique and no secrets: linking crypto/rand makes each
// start of the plugin longer.
func NewID() string { return fmt.Sprintf("%016x", rand.Uint64()) }

// ErrNoHostView is returned if it is not proven that this process sees the processes and mounts of
// the host.
var ErrNoHostView = errors.New("the host cannot be seen from here, so nothing is done")

// RecordNamespaces records the namespaces in which the plugin runs, which are those of the runtime.
// Other programs compare them with their own (ProveView).
func (c *Call) RecordNamespaces() error {
	if word := c.node.Host.NamespaceIDs(c.Now.BootID); word != "" && word != c.Tx.NamespaceIDs() {
		return c.Tx.SetNamespaceIDs(word)
	}
	return nil
}

// ProveView returns ErrNoHostView if it is not proven that this process sees the same processes and
// mounts as the plugin. Without that proof a living sandbox may seem to be gone.
func (c *Call) ProveView() error {
	if err := c.node.Host.ProveView(c.Tx.NamespaceIDs(), c.Now.BootID, c.Tx.Bound()); err != nil {
		return fmt.Errorf("%w: %w", ErrNoHostView, err)
	}
	return nil
}

// mayImport returns ErrNoHostView if this call may not import leases, because it is not the
// plugin's and its view is not proven.
func (c *Call) mayImport() error {
	if c.node.Plugin {
		return nil
	}
	return c.ProveView()
}
