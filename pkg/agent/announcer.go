package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/rundir"
)

// Announcer processes the announce queue: it announces the addresses of each attachment in the
// queue with a gratuitous ARP or an unsolicited neighbour advertisement, and then removes the
// attachment. So the neighbours of a pod that came back to its address learn its new hardware
// address.
//
// Neighbours that talked to the pod before would keep sending to its former hardware address for 30
// to 43 s: Linux uses a confirmed neighbour entry for about 30 s, waits another 5 s, and then
// probes it three times. The kernel does announce an interface that comes up (arp_notify, which the
// bridge plugin enables), but that frame is lost, because it reaches the bridge's port a moment
// before the port forwards (docs/decisions.md, "Announce a returned address").
//
// The plugin adds the attachment to the queue (store.Announce). The Announcer waits until the
// address can be used, announces it from the pod's own network namespace (RFC 5227; RFC 4861,
// 7.2.6), and repeats that a few times.
type Announcer struct {
	// Dir is the queue (rundir.Dir.Announcements).
	Dir string
	// Wake receives a value when the queue may have changed (Changes.Queue).
	Wake <-chan struct{}
	// Bound returns the leases that an attachment holds now. It is called before each announcement:
	// an address that the attachment no longer holds must not be announced.
	Bound func(context.Context, lease.Attachment) ([]lease.Lease, error)
	// Inside calls a function on a thread in the network namespace of a lease. It fails if the
	// namespace at that path is no longer the one of the lease.
	Inside func(lease.Netns, func() error) error
	// Clock reads the wall clock and the boot clock.
	Clock func() lease.Instant
	// Announced is called once for each address, after its last announcement.
	Announced func()
	Log       *slog.Logger

	workers errgroup.Group
	busy    sync.Map // names of the entries that a worker processes
}

const (
	// queuePoll is the longest time between two readings of the queue.
	queuePoll = 5 * time.Second
	// maxAge is the time after the pod's return for which an announcement is useful. Later all
	// neighbour entries with the former hardware address have expired.
	maxAge = 2 * time.Minute
	// maxWait is how long a worker waits for an interface with the address. Some runtimes move the
	// address out of the namespace, so that no interface ever has it.
	maxWait = 30 * time.Second
	// maxWorkers limits the attachments that are processed at the same time. Each may occupy a
	// thread.
	maxWorkers = 128
	// minPoll and maxPoll are the shortest and the longest pause between two checks of an
	// interface that is not ready.
	minPoll = 4 * time.Millisecond
	maxPoll = 500 * time.Millisecond
)

// pauses are the pauses before each announcement. The first announcement may be sent before a
// switch port forwards, or get lost. The last is sent more than a second later, for neighbours that
// accept no unsolicited change of an entry for that long (neigh/*/locktime; current Linux exempts
// gratuitous ARP, older kernels do not).
var pauses = []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond, 1100 * time.Millisecond,
	2 * time.Second}

// Announce returns the task that announces the addresses of pods to their neighbours, after an ADD
// gave a pod its former address again. host is used to enter the pod's network namespace.
func Announce(node Node, host *host.Host) Task {
	announced := promauto.With(node.Metrics).NewCounter(prometheus.CounterOpts{
		Name: "leasehold_announcements_total",
		Help: "Addresses announced to their neighbours after their pod returned.",
	})
	a := &Announcer{
		Dir:       node.Service.Node.Store.Run().Announcements(),
		Wake:      daemon.Any(&node.Changes.Queue),
		Bound:     node.Service.Bound,
		Inside:    host.RunInNetns,
		Clock:     node.Service.Node.Clock,
		Announced: announced.Inc,
		Log:       node.Log.With("task", "announce"),
	}
	return Task{Name: "announce", Run: a.Run}
}

// Run processes the queue, and entries that are added to it, until ctx is done.
func (a *Announcer) Run(ctx context.Context) error {
	a.workers.SetLimit(maxWorkers)
	defer func() { _ = a.workers.Wait() }() // no worker returns an error
	return daemon.Loop(ctx, 0, a.Wake, func(ctx context.Context) time.Duration {
		a.start(ctx)
		return queuePoll
	})
}

// start starts a worker for each entry that has none, up to maxWorkers. The remaining entries get
// theirs when a worker has removed its entry, which is a change of the queue.
func (a *Announcer) start(ctx context.Context) {
	entries, _ := os.ReadDir(a.Dir) // there is no directory before the first return of a pod
	for _, e := range entries {
		name, path := e.Name(), filepath.Join(a.Dir, e.Name())
		who, ok := rundir.AttachmentOf(name, path)
		if !ok && strings.HasPrefix(name, "#") {
			continue // it is not written yet
		}
		if !ok {
			a.Log.Warn("invalid entry in the announce queue, removing it", "name", name)
			a.remove(name)
			continue
		}
		if _, isBusy := a.busy.LoadOrStore(name, true); isBusy {
			continue
		}
		if _, err := os.Lstat(path); err != nil { // a worker has removed it since the directory was read
			a.busy.Delete(name)
			continue
		}
		started := a.workers.TryGo(func() error {
			defer a.busy.Delete(name)
			a.work(ctx, who)
			if ctx.Err() == nil { // else the next Run processes it
				a.remove(name)
			}
			return nil
		})
		if !started {
			a.busy.Delete(name)
			return
		}
	}
}

// remove deletes an entry of the queue, even if it is not a regular file.
func (a *Announcer) remove(name string) {
	if err := os.RemoveAll(filepath.Join(a.Dir, name)); err != nil {
		a.Log.Warn("removing an entry of the announce queue failed", "error", err)
	}
}

// work announces all addresses of an attachment concurrently: one may be usable at once, and
// another only after duplicate address detection.
func (a *Announcer) work(ctx context.Context, who lease.Attachment) {
	leases, err := a.held(ctx, who)
	if err != nil && ctx.Err() == nil {
		a.Log.Warn("reading the leases to announce failed", "container", who.ContainerID, "error", err)
	}
	var addresses sync.WaitGroup
	for _, l := range leases {
		addresses.Go(func() {
			log := a.Log.With("address", l.Address.String(), "pod", l.Namespace+"/"+l.Name,
				"container", who.ContainerID)
			if err := a.announce(ctx, l, log); err != nil && ctx.Err() == nil {
				log.Info("address not announced", "reason", err)
			}
		})
	}
	addresses.Wait()
}

// held returns the leases of an attachment. While the store cannot be read it retries, until an
// announcement would no longer be useful.
func (a *Announcer) held(ctx context.Context, who lease.Attachment) ([]lease.Lease, error) {
	for began := a.Clock(); ; {
		leases, err := a.Bound(ctx, who)
		if err == nil || a.Clock().Since(began) > maxAge || !daemon.Wait(ctx, nil, queuePoll) {
			return leases, err
		}
	}
}

var (
	errTooOld   = errors.New("the pod came back too long ago")
	errNotReady = errors.New("no running interface has the address")
	errNotHeld  = errors.New("the container no longer holds the address")
)

// announce waits until the interface of the pod is ready, and announces its address once after each
// of the pauses. Each announcement reads the store first, which may be busy for a moment, so an
// error does not end the loop, unless it is errNotHeld.
func (a *Announcer) announce(ctx context.Context, l lease.Lease, log *slog.Logger) error {
	if err := a.await(ctx, l); err != nil {
		return err
	}
	var err error
	announced := false
	for _, pause := range pauses {
		if !daemon.Wait(ctx, nil, pause) {
			return ctx.Err()
		}
		if err = a.sendOne(ctx, l); errors.Is(err, errNotHeld) {
			break
		}
		announced = announced || err == nil
	}
	if !announced {
		return err
	}
	log.Debug("announced")
	a.Announced()
	return nil
}

// await waits until a running interface in the pod's namespace has the address.
func (a *Announcer) await(ctx context.Context, l lease.Lease) error {
	began := a.Clock()
	if began.Since(l.BoundAt) > maxAge {
		return errTooOld
	}
	for wait := minPoll; ; wait = min(wait+wait/4, maxPoll) {
		err := a.Inside(l.Holder.Netns, func() error {
			_, err := ready(l.Address)
			return err
		})
		if !errors.Is(err, errNotReady) || a.Clock().Since(began) > maxWait {
			return err
		}
		if !daemon.Wait(ctx, nil, wait) {
			return ctx.Err()
		}
	}
}

// sendOne announces the address from the interface that has it now, if the container still holds
// it.
func (a *Announcer) sendOne(ctx context.Context, l lease.Lease) error {
	if err := a.stillHeld(ctx, l); err != nil {
		return err
	}
	return a.Inside(l.Holder.Netns, func() error {
		link, err := ready(l.Address)
		if err != nil {
			return err
		}
		return send(link, l.Address)
	})
}

// stillHeld returns errNotHeld unless the lease still has the same holder in the same namespace.
func (a *Announcer) stillHeld(ctx context.Context, l lease.Lease) error {
	leases, err := a.Bound(ctx, l.Holder.Attachment())
	if err != nil {
		return err
	}
	for _, now := range leases {
		isSame := now.Address == l.Address && now.Pool == l.Pool && now.State == lease.Bound
		if isSame && now.Holder.Is(l.Holder) && now.Holder.Netns.Same(l.Holder.Netns) {
			return nil
		}
	}
	return errNotHeld
}
