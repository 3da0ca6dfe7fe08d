package announce

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Announcer works off the announce queue.
type Announcer struct {
	// Dir is the queue: an empty file for each attachment that came back, named
	// by lease.Holder.Name. It is made if it is missing.
	Dir string
	// Bound returns the leases that an attachment holds now. It is asked before
	// each announcement: nothing else is ever announced.
	Bound func(context.Context, lease.Holder) ([]lease.Lease, error)
	// Inside calls a function on a thread in a network namespace, if that is still
	// the one that the lease names.
	Inside func(lease.Netns, func() error) error
	// Clock reads both clocks.
	Clock func() lease.Instant
	// Announced is told once of each address that was announced, after the last
	// repeat; may be nil.
	Announced func(context.Context, Announcement)
	Log       *slog.Logger
}

// Announcement is what was told.
type Announcement struct {
	Holder lease.Holder
	Addr   netip.Addr
	MAC    net.HardwareAddr
}

const (
	maxAge    = 2 * time.Minute        // by then every neighbour has found out by itself
	patience  = 30 * time.Second       // with an address that nothing has: some runtimes take it out of the namespace
	atOnce    = 128                    // attachments; one that is looked at or announced needs a thread for that time
	firstLook = 4 * time.Millisecond   // how soon an interface is looked at again that is not ready,
	lastLook  = 500 * time.Millisecond // and how late at most
)

// repeats are the pauses before each announcement. The first may come before a
// switch port forwards, or get lost. The last is more than a second later, for
// neighbours that keep an entry for that long against what nobody asked for
// (neigh/*/locktime; Linux lets a gratuitous ARP through now, and did not always).
var repeats = []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond, 1100 * time.Millisecond, 2 * time.Second}

// Run announces what is in the queue, and what comes into it, until ctx is done.
func (a *Announcer) Run(ctx context.Context) error {
	r := &run{Announcer: a, busy: map[string]bool{}, slots: make(chan struct{}, atOnce)}
	defer r.workers.Wait()
	w := &watch{dir: a.Dir, log: a.Log}
	defer w.close()
	for {
		w.renew()
		r.start(ctx)
		if !w.wait(ctx) {
			return ctx.Err()
		}
	}
}

// run is one Run.
type run struct {
	*Announcer
	workers sync.WaitGroup
	slots   chan struct{}

	mu     sync.Mutex
	busy   map[string]bool // notes that somebody works on
	unread bool            // the store cannot be read, and that was said
}

// start gives each note that nobody works on to a worker, as long as there are
// any to be had. The rest is found again when a worker has removed its note,
// which is an event.
func (r *run) start(ctx context.Context) {
	dir, err := os.Open(r.Dir)
	if err != nil {
		return // the watch has said it
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		who, ok := lease.ParseHolder(name)
		if !ok {
			r.Log.Warn("a note in the announce queue cannot be read; it is removed", "name", name)
			r.forget(name)
			continue
		}
		if !r.take(name) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(r.Dir, name)); err != nil {
			r.release(name) // worked off since it was listed
			continue
		}
		select {
		case r.slots <- struct{}{}:
		default:
			r.release(name)
			return
		}
		r.workers.Go(func() {
			r.work(ctx, who)
			if ctx.Err() == nil { // else the next run goes on with it
				r.forget(name)
			}
			r.release(name)
			<-r.slots
		})
	}
}

func (r *run) take(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[name] {
		return false
	}
	r.busy[name] = true
	return true
}

func (r *run) release(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, name)
}

// forget takes a note away, also one that is no file.
func (r *run) forget(name string) {
	if err := os.RemoveAll(filepath.Join(r.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Log.Warn("a note in the announce queue cannot be removed", "error", err)
	}
}

// work announces all addresses of an attachment, each in its own time: one may
// be usable at once, and another only after duplicate address detection.
func (r *run) work(ctx context.Context, who lease.Holder) {
	leases, err := r.held(ctx, who)
	if err != nil {
		return
	}
	var addresses sync.WaitGroup
	for _, l := range leases {
		addresses.Go(func() {
			log := r.Log.With("address", l.Address.String(), "pod", l.Namespace+"/"+l.Name, "container", who.ContainerID)
			if err := r.announce(ctx, l, log); err != nil && ctx.Err() == nil {
				log.Info("not announced", "reason", err)
			}
		})
	}
	addresses.Wait()
}

// held returns what an attachment holds. It asks until the answer would be of no
// use any more.
func (r *run) held(ctx context.Context, who lease.Holder) ([]lease.Lease, error) {
	for began := r.Clock(); ; {
		leases, err := r.Bound(ctx, who)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.say(err)
		if err == nil || r.Clock().Since(began) > maxAge || !pause(ctx, slowly) {
			return leases, err
		}
	}
}

// say logs when the store cannot be read any more: for all notes once.
func (r *run) say(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && !r.unread {
		r.Log.Warn("it is not known what is to be announced", "error", err)
	}
	r.unread = err != nil
}

var (
	errTooOld   = errors.New("the pod came back too long ago")
	errNotReady = errors.New("no running interface has the address")
	errNotHeld  = errors.New("it is another container's now, or nobody's")
)

// announce tells of one address, as often as repeats says. A repeat that fails is
// left out: the store may be busy for a moment. What is made of the announcement
// may wait for the store, too, so that comes last.
func (r *run) announce(ctx context.Context, l lease.Lease, log *slog.Logger) error {
	if err := r.await(ctx, l); err != nil {
		return err
	}
	var told *Announcement
	var failed error
	for _, after := range repeats {
		if !pause(ctx, after) {
			return ctx.Err()
		}
		mac, err := r.once(ctx, l)
		if err == nil {
			told = &Announcement{Holder: l.Holder, Addr: l.Address, MAC: mac}
			continue
		}
		if failed = err; errors.Is(err, errNotHeld) {
			break
		}
	}
	if told == nil {
		return failed
	}
	log.Debug("announced", "mac", told.MAC.String())
	if r.Announced != nil {
		r.Announced(ctx, *told)
	}
	return nil
}

// await returns when the address can be used.
func (r *run) await(ctx context.Context, l lease.Lease) error {
	began := r.Clock()
	if began.Since(l.BoundAt) > maxAge {
		return errTooOld
	}
	for wait := firstLook; ; wait = min(wait+wait/4, lastLook) {
		err := r.Inside(l.Holder.Netns, func() error {
			_, err := ready(l.Address)
			return err
		})
		if !errors.Is(err, errNotReady) || r.Clock().Since(began) > patience {
			return err
		}
		if !pause(ctx, wait) {
			return ctx.Err()
		}
	}
}

// once announces the address from the interface that has it now, if it is still
// the container's.
func (r *run) once(ctx context.Context, l lease.Lease) (mac net.HardwareAddr, err error) {
	if err := r.stillHeld(ctx, l); err != nil {
		return nil, err
	}
	err = r.Inside(l.Holder.Netns, func() error {
		link, err := ready(l.Address)
		if err != nil {
			return err
		}
		mac = link.HardwareAddr
		return tell(link, l.Address)
	})
	return mac, err
}

func (r *run) stillHeld(ctx context.Context, l lease.Lease) error {
	leases, err := r.Bound(ctx, l.Holder)
	if err != nil {
		return err
	}
	for _, now := range leases {
		if now.Address == l.Address && now.Pool == l.Pool && now.State == lease.Bound && now.Holder.Is(l.Holder) && now.Holder.Netns.Same(l.Holder.Netns) {
			return nil
		}
	}
	return errNotHeld
}

// pause waits; false if ctx is done before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
