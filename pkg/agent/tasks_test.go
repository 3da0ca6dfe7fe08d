package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// Every task has a name, ends when its context is done, and closes its files.
func TestTasksEnd(t *testing.T) {
	node, _ := newNode(t)
	update(t, node, func(tx *store.Tx) error { return tx.BeginBoot("boot-1") })
	metrics := NewMetrics(node)
	for name, task := range map[string]Task{
		"announce": Announce(node, host.New("/proc", host.DefaultBootIDFile)),
		"collect":  Collect(node, &Health{}, nil, metrics),
		"serve":    Serve("127.0.0.1:0", prometheus.NewRegistry(), &Health{}, node.Log),
	} {
		if task.Name != name {
			t.Errorf("task %s has the name %q", name, task.Name)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- task.Run(ctx) }()
		time.Sleep(20 * time.Millisecond)
		stop()
		select {
		case err := <-ended:
			if name == "serve" && err != nil || name != "serve" && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s does not end", name)
		}
	}
	if node.Changes.files != nil || metrics.callLog != nil {
		t.Error("a file is still open")
	}
	if _, err := os.Stat(filepath.Join(node.Service.Node.Store.Dirs().Run, "calls")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the call log after the end: %v", err)
	}
}

// A context that is done says nothing about the node.
func TestCollectorThatIsStopped(t *testing.T) {
	node, out := newNode(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	health := &Health{}
	if next := newCollector(node, health).once(ctx); next != surveyInterval || health.surveyed {
		t.Errorf("surveyed: %v, the next survey is after %s", health.surveyed, next)
	}
	if out.Len() > 0 {
		t.Errorf("logged:\n%s", out)
	}
}

func TestNextSurvey(t *testing.T) {
	node, out := newNode(t)
	now := node.Service.Node.Clock()
	node.Service.Node.Clock = func() lease.Instant { return now }
	spaces := node.Service.Node.Host.NamespaceIDs("boot-1")
	c := newCollector(node, &Health{})
	for _, tt := range []struct{ hold, want time.Duration }{
		{4 * time.Second, 4 * time.Second}, {time.Hour, surveyInterval}, {time.Millisecond, minSurveyInterval},
	} {
		l := bound(t, "10.0.0.2", "db-0", "boot-1")
		l.Window = lease.Window(tt.hold)
		l.Holder.Netns = lease.Netns{Path: "/" + strings.Repeat("x", 300), Dev: 4, Ino: 5}
		l, err := lease.Apply(l, lease.Release{Holder: l.Holder}, now)
		if err != nil {
			t.Fatal(err)
		}
		update(t, node, func(tx *store.Tx) error {
			return errors.Join(tx.Put(l.Pool, l.Address, l), tx.SetNamespaceIDs(spaces))
		})
		if next := c.once(t.Context()); next != tt.want {
			t.Errorf("a hold of %s: the next survey is after %s, want %s\n%s", tt.hold, next, tt.want, out)
		}
	}
	if strings.Contains(out.String(), "plan executed") {
		t.Errorf("an empty plan is executed:\n%s", out)
	}
	count, err := node.Metrics.(*prometheus.Registry).Gather()
	if err != nil || len(count) == 0 || count[0].GetName() != "leasehold_doubtful_leases" {
		t.Errorf("metrics: %v, %v", count, err)
	}
}

// Reservation names that no ADD uses are removed once an hour.
func TestForgottenNames(t *testing.T) {
	node, out := newNode(t)
	l := bound(t, "10.0.0.2", "db-0", "boot-1")
	netns, err := node.Service.Node.Host.Netns("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	l.Holder.Netns = netns
	spaces := node.Service.Node.Host.NamespaceIDs("boot-1")
	gone := store.PodReservation{Namespace: "db", Name: "gone", UID: "u1", Reservation: "registry",
		Window: lease.Window(time.Hour)}
	update(t, node, func(tx *store.Tx) error {
		return errors.Join(tx.Put(l.Pool, l.Address, l), tx.SetNamespaceIDs(spaces))
	})
	c := newCollector(node, &Health{})
	for i, tt := range []struct {
		forgotten time.Duration // how long ago
		stays     bool
	}{{0, false}, {0, true}, {59 * time.Minute, true}, {61 * time.Minute, false}} {
		if tt.forgotten > 0 {
			c.forgotten = time.Now().Add(-tt.forgotten)
		}
		update(t, node, func(tx *store.Tx) error {
			return tx.SetPodReservation(gone, time.Unix(1_000_000, 0))
		})
		c.once(t.Context())
		err := node.Service.Node.Store.View(t.Context(), func(tx *store.Tx) error {
			if _, stays := tx.PodReservation(gone.Namespace, gone.UID); stays != tt.stays {
				t.Errorf("survey %d: the name is stored: %v, want %v\n%s", i, stays, tt.stays, out)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A store that cannot be read stops everything after the survey.
func TestCollectorOfALostStore(t *testing.T) {
	node, out := newNode(t)
	update(t, node, func(tx *store.Tx) error { return tx.BeginBoot("boot-1") })
	if err := os.Truncate(filepath.Join(node.Service.Node.Store.Dirs().State, "leases.db"), 100); err != nil {
		t.Fatal(err)
	}
	c := newCollector(node, &Health{})
	if next := c.once(t.Context()); next != surveyInterval || strings.Contains(out.String(), "node surveyed") {
		t.Errorf("the next survey is after %s\n%s", next, out)
	}
	c.forget(t.Context()) // fails
	if !c.forgotten.IsZero() {
		t.Error("names that could not be removed count as removed")
	}
}

// A call log that was removed, or could not be opened, is started again.
func TestCallLogIsStartedAgain(t *testing.T) {
	node, _ := newNode(t)
	m := NewMetrics(node)
	run := node.Service.Node.Store.Dirs().Run
	if err := os.WriteFile(run, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.read()
	if m.callLog != nil {
		t.Fatal("a call log below a file")
	}
	if err := os.Remove(run); err != nil {
		t.Fatal(err)
	}
	m.read()
	m.close()
	m.close()
	for range 3 {
		m.read()
		node.Service.Node.Store.LogCall(store.Call{Verb: "ADD", Result: "ok"})
		m.read()
		if err := os.RemoveAll(run); err != nil {
			t.Fatal(err)
		}
	}
	m.read()
	defer m.close()
	var got dto.Metric
	if err := m.calls.WithLabelValues("ADD", "ok").Write(&got); err != nil || got.Counter.GetValue() != 3 {
		t.Errorf("%v calls, %v", got.Counter.GetValue(), err)
	}
}

// Removed directories are watched again at the next poll, and lost events are made up for at once.
func TestChangesArePolled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	c := NewChanges(dirsIn(dir), slog.New(slog.DiscardHandler))
	if c.poll != pollInterval {
		t.Errorf("polls every %s", c.poll)
	}
	c.poll = 50 * time.Millisecond
	signals := c.Subscribe()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	for range 2 {
		next(t, signals)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		until(t, "the directory is made again", func() bool { return exists(dir) })
	}
	stop()
	<-ended

	c = NewChanges(dirsIn(dir), slog.New(slog.DiscardHandler))
	signals = c.Subscribe()
	ctx, stop = context.WithCancel(t.Context())
	go func() { ended <- c.Run(ctx) }()
	next(t, signals)
	c.files.Errors <- errors.New("overflow")
	next(t, signals)
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A directory that cannot be watched costs no descriptors.
func TestFailedWatchesAreClosed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := NewChanges(dirsIn(filepath.Join(file, "state")), slog.New(slog.DiscardHandler))
	opened := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	c.watch()
	before := opened()
	for range 10 {
		c.watch()
	}
	until(t, fmt.Sprintf("no more than %d descriptors are open", before+2), func() bool { return opened() <= before+2 })
}

// If no file can be opened, the directory is not watched, and is watched as soon as it can be.
func TestWatchWithoutDescriptors(t *testing.T) {
	c := NewChanges(dirsIn(filepath.Join(t.TempDir(), "state")), slog.New(slog.DiscardHandler))
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	c.watch()
	watched := c.files != nil
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	c.watch()
	defer c.unwatch()
	if watched || c.files == nil {
		t.Errorf("watched without descriptors: %v, with: %v", watched, c.files != nil)
	}
}

// A request that is being answered when the task is stopped is answered.
func TestServeFinishesRequests(t *testing.T) {
	var out safeBuffer
	started, release := make(chan struct{}), make(chan struct{})
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		close(started)
		<-release
		return nil, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	ended, answered := make(chan error, 1), make(chan int, 1)
	go func() {
		ended <- Serve("127.0.0.1:0", gather, &Health{}, slog.New(slog.NewTextHandler(&out, nil))).Run(ctx)
	}()
	var addr string
	for addr == "" {
		_, rest, _ := strings.Cut(out.String(), "addr=")
		addr, _, _ = strings.Cut(rest, "\n")
		time.Sleep(time.Millisecond)
	}
	go func() {
		code, _ := get(t, "http://"+addr+"/metrics")
		answered <- code
	}()
	<-started
	stop()
	select {
	case err := <-ended:
		t.Errorf("ended before the answer: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if code := <-answered; code != 200 {
		t.Errorf("answer %d", code)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A pod that came back has its address announced, and its lease gets the hardware address.
func TestAnnounceRecordsTheHardwareAddress(t *testing.T) {
	node, out := newNode(t)
	path := filepath.Join(t.TempDir(), "netns")
	mac, _ := net.ParseMAC("02:00:00:00:00:07")
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with its namespace
		done <- func() error {
			if err := errors.Join(unix.Unshare(unix.CLONE_NEWNET), os.WriteFile(path, nil, 0o600)); err != nil {
				return err
			}
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: mac}, PeerName: "peer"}
			addr, err := netlink.ParseAddr("10.0.0.2/24")
			err = errors.Join(err, netlink.LinkAdd(link), netlink.AddrAdd(link, addr), netlink.LinkSetUp(link))
			if err != nil {
				return err
			}
			peer, err := netlink.LinkByName("peer")
			return errors.Join(err, netlink.LinkSetUp(peer),
				unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""))
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	host := host.New("/proc", host.DefaultBootIDFile)
	netns, err := host.Netns(path)
	if err != nil {
		t.Fatal(err)
	}
	l := bound(t, "10.0.0.2", "db-0", "boot-1")
	l.Holder.Netns, l.BoundAt = netns, node.Service.Node.Clock()
	update(t, node, func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) })
	if err := node.Service.Node.Store.Announce(l.Holder); err != nil {
		t.Fatal(err)
	}
	task := Announce(node, host)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- task.Run(ctx) }()
	var got lease.Lease
	until(t, "the lease has a hardware address", func() bool {
		if err := node.Service.Node.Store.View(t.Context(), func(tx *store.Tx) (err error) {
			got, err = tx.Get(l.Pool, netip.MustParseAddr("10.0.0.2"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return got.MAC != ""
	})
	stop()
	<-ended
	if got.MAC != mac.String() {
		t.Errorf("the lease has the hardware address %q\n%s", got.MAC, out)
	}
	families, err := node.Metrics.(*prometheus.Registry).Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "leasehold_announcements_total" ||
		families[0].Metric[0].Counter.GetValue() != 1 {
		t.Errorf("metrics: %v, %v", families, err)
	}
}

// A spooled DEL is recorded in the store at once. If the view is not proven, nothing is written.
func TestSpooledDELsAreRecorded(t *testing.T) {
	node, _ := newNode(t)
	node.Changes = NewChanges(node.Service.Node.Store.Dirs(), node.Log)
	l := bound(t, "10.0.0.2", "db-0", "boot-1")
	update(t, node, func(tx *store.Tx) error {
		return errors.Join(tx.Put(l.Pool, l.Address, l), tx.SetNamespaceIDs("boot-1 another"))
	})
	spool := func() {
		n := node.Service.Node
		if err := n.Store.Spool(l.Holder.ContainerID, l.Holder.IfName, n.Clock()); err != nil {
			t.Fatal(err)
		}
	}
	waiting := func() int {
		records, err := node.Service.Node.Store.Spooled("boot-1")
		if err != nil {
			t.Fatal(err)
		}
		return len(records)
	}
	spool()
	if err := node.Service.Replay(t.Context()); !errors.Is(err, transact.ErrNoHostView) || waiting() != 1 {
		t.Errorf("without a view: %v, %d wait", err, waiting())
	}
	update(t, node, func(tx *store.Tx) error {
		return tx.SetNamespaceIDs(node.Service.Node.Host.NamespaceIDs("boot-1"))
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	task := Collect(node, &Health{}, nil, NewMetrics(node))
	go func() { ended <- task.Run(ctx) }()
	for range 2 {
		until(t, "it is replayed", func() bool { return waiting() == 0 })
		spool() // of a container that is released: the record alone is removed
	}
	stop()
	<-ended
	var released int
	if _, err := node.Service.Journal(t.Context(), 0, func(_ uint64, n store.Entry) {
		if n.Event == store.EventReleased {
			released++
		}
	}); err != nil || released != 1 {
		t.Errorf("released %d times, %v", released, err)
	}
}
