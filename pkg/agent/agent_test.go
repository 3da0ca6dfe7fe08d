package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/rundir"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
	"github.com/leasehold-cni/leasehold/test/ownproc"
)

// newNode returns a node with a real store, whose host is the real kernel with another boot id.
func newNode(t *testing.T) (Node, *bytes.Buffer) {
	t.Helper()
	dir := t.TempDir()
	boot := filepath.Join(dir, "boot_id")
	must.Succeed(t, os.WriteFile(boot, []byte("boot-1\n"), 0o600))
	var out bytes.Buffer
	started := time.Now()
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return Node{
		Service: &maintain.Service{Node: &operation.Node{
			Store: store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}),
			Host:  host.New(ownproc.Dir(t), boot),
			Clock: func() lease.Instant {
				return lease.Instant{Wall: time.Now(), Boot: time.Since(started) + time.Hour, BootID: "boot-1"}
			},
		}},
		Changes: NewChanges(dirsIn(filepath.Join(dir, "state")), log),
		Log:     log,
		Metrics: prometheus.NewRegistry(),
	}, &out
}

func update(t *testing.T, node Node, fn func(*store.Tx) error) {
	t.Helper()
	must.Succeed(t, node.Service.Node.Store.Update(context.Background(), fn))
}

// bound returns the lease of a holder that started in the given boot.
func bound(t *testing.T, addr, pod, boot string) lease.Lease {
	t.Helper()
	l, err := lease.Apply(lease.Lease{}, lease.Bind{Lease: lease.Lease{
		ID: "00112233445566aa", Pool: lease.Pool{DataDir: "/does-not-exist", Network: "net"},
		Address: netip.MustParseAddr(addr), Set: "s",
		Namespace: "db", Name: pod, UID: "u", Window: lease.Window(time.Hour), CoolDown: time.Minute,
		Holder: lease.Holder{ContainerID: "c-" + pod, IfName: "eth0", BootID: boot,
			Netns: lease.Netns{Path: "/does-not-exist", Dev: 4, Ino: 5}},
	}}, lease.Instant{Wall: time.Now(), Boot: time.Minute, BootID: boot})
	must.Succeed(t, err)
	return l
}

func rangeSet(first, last string) pool.Set {
	return pool.Set{{Start: netip.MustParseAddr(first), End: netip.MustParseAddr(last)}}
}

func TestMetrics(t *testing.T) {
	node, _ := newNode(t)
	a, b := bound(t, "10.0.0.2", "db-0", "boot-1"), bound(t, "10.0.0.3", "db-1", "boot-1")
	update(t, node, func(tx *store.Tx) error {
		held, err := lease.Apply(b, lease.Release{Holder: b.Holder}, a.BoundAt)
		return errors.Join(err, tx.Put(a.Pool, a.Address, a), tx.Put(held.Pool, held.Address, held),
			tx.SetRanges(a.Pool, []pool.Set{rangeSet("fd00::2", "fd00::ffff"), rangeSet("10.0.0.2", "10.0.0.11")}),
			tx.SetImported(lease.Pool{DataDir: a.Pool.DataDir, Network: "without-ranges"}), tx.Count("leases/kept", 3))
	})
	calls := newCallMetrics(node.Metrics)
	calls.read(node) // starts the call log
	node.Service.Node.Store.Run().LogCall(rundir.Call{Verb: "ADD", Result: "ok", Took: 3 * time.Millisecond,
		Waited: time.Millisecond})
	const wait = 10 * time.Second
	node.Service.Node.Store.Run().LogCall(rundir.Call{Verb: "ADD", Result: "11", Took: wait, Waited: wait})
	calls.read(node)
	m := storeMetrics{node}
	node.Metrics.(*prometheus.Registry).MustRegister(m)
	all := node.Metrics.(prometheus.Gatherer)
	problems, err := testutil.GatherAndLint(all)
	must.Succeed(t, err)
	check.Empty(t, problems)
	want, err := os.Open("testdata/metrics.txt")
	must.Succeed(t, err)
	defer want.Close()
	names := []string{"leasehold_addresses", "leasehold_calls_total", "leasehold_leases_kept_total",
		"leasehold_pool_addresses", "leasehold_pool_free_addresses", "leasehold_store_readable"}
	must.Succeed(t, testutil.GatherAndCompare(all, want, names...))
	n, err := testutil.GatherAndCount(all, "leasehold_call_duration_seconds", "leasehold_lock_wait_seconds")
	must.Succeed(t, err)
	check.Equal(t, n, 2, "histograms of calls")
	os.Remove(filepath.Join(node.Service.Node.Store.Dirs().State, "leases.db"))
	isReadable(t, m, 0)
}

// isReadable checks the metric that the store can be read, beside which there is none of addresses.
func isReadable(t *testing.T, m storeMetrics, want int) {
	t.Helper()
	text := fmt.Sprint("# HELP leasehold_store_readable Whether the lease store could be read for this scrape (1), ",
		"or is lost or busy (0).\n# TYPE leasehold_store_readable gauge\nleasehold_store_readable ", want, "\n")
	must.Succeed(t, testutil.CollectAndCompare(m, strings.NewReader(text), "leasehold_store_readable",
		"leasehold_addresses", "leasehold_pool_addresses", "leasehold_pool_free_addresses"))
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	must.Succeed(t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	must.Succeed(t, err)
	return r.StatusCode, string(b)
}

// Holders of another boot are dead; a holder of this boot whose namespace cannot be examined may be
// alive.
func TestCollectReleasesOnlyProvenDead(t *testing.T) {
	node, out := newNode(t)
	old := bound(t, "10.0.0.2", "db-0", "boot-0")
	spaces := node.Service.Node.Host.NamespaceIDs("boot-1") // as the plugin records them
	update(t, node, func(tx *store.Tx) error {
		return errors.Join(tx.Put(old.Pool, old.Address, old), tx.SetNamespaceIDs(spaces))
	})
	health := &Health{}
	c := newLeaseTask(node, health, &use{})
	c.once(context.Background())
	if state(t, node, old) != lease.Held || health.ready() != nil {
		t.Errorf("state %s, ready: %v\n%s", state(t, node, old), health.ready(), out)
	}
	check.Equal(t, testutil.ToFloat64(c.complete), 1, "leasehold_survey_complete after a complete survey")
	living, here := bound(t, "10.0.0.4", "db-2", "boot-1"), bound(t, "10.0.0.3", "db-1", "boot-1")
	netns, err := node.Service.Node.Host.Netns("/proc/self/ns/net")
	must.Succeed(t, err)
	living.Holder.Netns, here.Holder.Netns.Path = netns, "/"+strings.Repeat("x", 300) // longer than a file name may be
	update(t, node, func(tx *store.Tx) error {
		return errors.Join(tx.Put(living.Pool, living.Address, living), tx.Put(here.Pool, here.Address, here))
	})
	for range 3 {
		c.once(context.Background())
	}
	if state(t, node, here) != lease.Bound || health.ready() != nil || testutil.ToFloat64(c.unknown) != 1 {
		t.Errorf("state %s, ready: %v, unknown: %v",
			state(t, node, here), health.ready(), testutil.ToFloat64(c.unknown))
	}
	check.Equal(t, strings.Count(out.String(), "it is unknown whether"), 1, "lines with the reason in", out)
	update(t, node, func(tx *store.Tx) error { return tx.SetNamespaceIDs("boot-1 elsewhere") })
	for range 3 {
		check.Equal(t, c.once(context.Background()), surveyInterval, "the time until the next survey")
	}
	check.Equal(t, state(t, node, here), lease.Bound)
	check.Is(t, health.ready(), operation.ErrNoHostView)
	check.Equal(t, testutil.ToFloat64(c.complete), 0, "leasehold_survey_complete without the host's view")
	check.Equal(t, strings.Count(out.String(), "level=ERROR"), 1, "lines with the failure in", out)
}

func TestAgentIsNotReadyIfTheStoreCannotBeRead(t *testing.T) {
	node, _ := newNode(t)
	l := bound(t, "10.0.0.2", "db-0", "boot-1")
	update(t, node, func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) })
	must.Succeed(t, os.Truncate(filepath.Join(node.Service.Node.Store.Dirs().State, "leases.db"), 100))
	health := &Health{}
	newLeaseTask(node, health, &use{}).once(t.Context())
	check.Is(t, health.ready(), store.ErrLost, "ready")
}

func state(t *testing.T, node Node, l lease.Lease) (s lease.State) {
	t.Helper()
	err := node.Service.Node.Store.View(context.Background(), func(tx *store.Tx) error {
		now, err := tx.Get(l.Pool, l.Address)
		s = now.State
		return err
	})
	must.Succeed(t, err)
	return s
}

func TestUnusedStoreIsNotCreated(t *testing.T) {
	node, _ := newNode(t)
	health := &Health{}
	c := newLeaseTask(node, health, &use{})
	c.once(context.Background())
	if health.ready() != nil {
		t.Error(health.ready())
	}
	isReadable(t, storeMetrics{node}, 1)
	if _, err := os.Stat(filepath.Join(node.Service.Node.Store.Dirs().State, "leases.db")); err == nil {
		t.Error("the agent created a store")
	}
}

func next(t *testing.T, changes <-chan struct{}) {
	t.Helper()
	select {
	case <-changes:
	case <-time.After(time.Minute):
		t.Fatal("no signal")
	}
}

// dirsIn returns the directories of a store, of which the state is in dir.
func dirsIn(dir string) store.Dirs { return store.Dirs{State: dir, Run: dir + "-run"} }

func TestChangesAreSignalled(t *testing.T) {
	node, _ := newNode(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	update(t, node, func(tx *store.Tx) error { return tx.Count("n", 1) })
	dir := node.Service.Node.Store.Dirs().State
	all := NewChanges(dirsIn(dir), node.Log)
	changes, others := daemon.Any(&all.Store), daemon.Any(&all.Store)
	go func() { _ = all.Run(ctx) }()
	next(t, changes) // at the start
	next(t, others)
	written := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { // repeatedly: the watch may not have started yet
		for {
			select {
			case <-written:
				return
			case <-time.After(20 * time.Millisecond):
				write := func(tx *store.Tx) error { return tx.Count("n", 1) }
				_ = node.Service.Node.Store.Update(ctx, write)
			}
		}
	})
	next(t, changes)
	next(t, others)
	os.Remove(filepath.Join(dir, "leases.db")) // replaced by the next write
	next(t, changes)
	next(t, changes)
	close(written)
	writer.Wait() // it may be about to write to a directory that is removed
}

// TestServe sends requests to a running task, and stops it.
func TestServe(t *testing.T) {
	var out background.Log
	registry, health := prometheus.NewRegistry(), &Health{}
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "some_total"}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	task := Serve("127.0.0.1:0", registry, health, slog.New(slog.NewTextHandler(&out, nil)))
	check.Equal(t, task.Name, "serve", "the task")
	go func() { ended <- task.Run(ctx) }()
	var addr string
	for addr == "" {
		_, rest, _ := strings.Cut(out.String(), "addr=")
		addr, _, _ = strings.Cut(rest, "\n")
		time.Sleep(time.Millisecond)
	}
	expect := func(path string, code int, text string) {
		t.Helper()
		if got, body := get(t, "http://"+addr+path); got != code || !strings.Contains(body, text) {
			t.Errorf("%s: %d %q; want %d %q", path, got, body, code, text)
		}
	}
	expect("/healthz", 200, "ok")
	expect("/metrics", 200, "some_total 0")
	expect("/readyz", 503, "not been surveyed")
	health.setReady(operation.ErrNoHostView)
	expect("/readyz", 503, "cannot be seen")
	health.setReady(nil)
	expect("/readyz", 200, "ok")
	if err := Serve(addr, registry, health, slog.New(slog.DiscardHandler)).Run(ctx); err == nil {
		t.Error("no error for an address in use")
	}
	stop()
	check.Is(t, <-ended, http.ErrServerClosed)
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		wait := Task{"wait", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		boom := errors.New("boom")
		fail := Task{"fail", func(context.Context) error { time.Sleep(time.Minute); return boom }}
		end := Task{"end", func(context.Context) error { return nil }}
		if err := Run(context.Background(), log, []Task{wait, fail, wait}); !errors.Is(err, boom) ||
			!strings.Contains(err.Error(), "fail: ") {
			t.Errorf("a failing task: %v", err)
		}
		if err := Run(context.Background(), log, []Task{wait, end}); err == nil {
			t.Error("a task that ends: no error")
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Hour, cancel)
		last := Task{"last", func(ctx context.Context) error { <-ctx.Done(); return boom }}
		quiet := Task{"quiet", func(ctx context.Context) error { <-ctx.Done(); return nil }}
		must.Succeed(t, Run(ctx, log, []Task{wait, quiet, last}), "stopped")
	})
}

// use is a Use that is told what has changed.
type use struct {
	checks  atomic.Int32
	changed atomic.Bool
	hangs   bool
}

func (u *use) Check(ctx context.Context, _ time.Time) bool {
	if u.checks.Add(1); u.hangs {
		<-ctx.Done()
	}
	return u.changed.Load()
}

func (u *use) Served() []maintain.Served { return nil }

// The configuration is checked every checkInterval, however often the store changes, and the node
// is surveyed at once if leasehold serves another network. A change has queued DELs applied.
func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, _ := newNode(t)
		out := &background.Log{}
		node.Log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		u, changes := &use{}, make(chan struct{})
		c := newLeaseTask(node, &Health{}, u)
		c.changes = changes
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error)
		go func() { ended <- c.run(ctx) }()
		surveys := func() int { synctest.Wait(); return strings.Count(out.String(), "node surveyed") }
		if n := surveys(); n != 1 || c.health.ready() != nil || u.checks.Load() != 1 {
			t.Errorf("%d surveys and %d checks at the start, ready: %v", n, u.checks.Load(), c.health.ready())
		}
		for range 20 {
			changes <- struct{}{}
		}
		if n := surveys(); n != 1 || u.checks.Load() != 1 {
			t.Errorf("%d surveys and %d checks after changes of the store", n, u.checks.Load())
		}
		n := node.Service.Node
		del := lease.Attachment{ContainerID: "c", IfName: "eth0"}
		must.Succeed(t, n.Store.Run().AddDEL(del, lease.Pool{DataDir: "/does-not-exist", Network: "net"}, n.Clock()))
		changes <- struct{}{}
		synctest.Wait()
		if queued, err := n.Store.Run().QueuedDELs("boot-1"); err != nil || len(queued) > 0 {
			t.Errorf("%v, and after a change of the store %d DELs are queued", err, len(queued))
		}
		time.Sleep(checkInterval)
		if n := surveys(); n != 1 || u.checks.Load() != 2 {
			t.Errorf("%d surveys and %d checks after %s", n, u.checks.Load(), checkInterval)
		}
		time.Sleep(surveyInterval - checkInterval - 1)
		u.changed.Store(true)
		check.Equal(t, surveys(), 1, "surveys just before", surveyInterval)
		for range 3 {
			time.Sleep(checkInterval)
		}
		if n := surveys(); n != 4 || u.checks.Load() != 5 {
			t.Errorf("%d surveys, %d checks; each check has found a change", n, u.checks.Load())
		}
		stop()
		check.Is(t, <-ended, context.Canceled)
	})
}

// Calls are counted while a pass over the leases takes long.
func TestCallsAreCountedDuringALongPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, _ := newNode(t)
		node.Changes = NewChanges(node.Service.Node.Store.Dirs(), node.Log)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		tasks := []Task{Leases(node, &Health{}, &use{hangs: true}), Calls(node)}
		go func() { ended <- Run(ctx, node.Log, tasks) }()
		synctest.Wait()
		node.Service.Node.Store.Run().LogCall(rundir.Call{Verb: "ADD", Result: "ok"})
		time.Sleep(2 * callInterval)
		synctest.Wait()
		want := `
# HELP leasehold_calls_total Calls of the plugin since the agent started, by verb and result: ok, or the error code.
# TYPE leasehold_calls_total counter
leasehold_calls_total{result="ok",verb="ADD"} 1
`
		all := node.Metrics.(prometheus.Gatherer)
		must.Succeed(t, testutil.GatherAndCompare(all, strings.NewReader(want), "leasehold_calls_total"))
		stop()
		must.Succeed(t, <-ended)
	})
}

// TestAgentIsNotReadyIfTheAPIServerRefusesIt has the API server refuse requests for a minute.
func TestAgentIsNotReadyIfTheAPIServerRefusesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const group = "/apis/ipam.leasehold.dev/v1alpha1/"
		const pool, own, users = group + "nodeaddresspools/node1", "/api/v1/namespaces/leasehold-system/configmaps",
			group + "namespaces/db/ipreservations/a"
		for _, c := range []struct {
			name      string
			responses []string // path and status, a minute between two
			want      string
		}{
			{"served", []string{pool + " 200", pool + " 404"}, ""},
			{"refused", []string{pool + " 403", pool + " 403"}, "GET " + pool},
			{"refused once", []string{pool + " 403", pool + " 200"}, ""},
			{"refused a moment ago", []string{pool + " 403"}, ""},
			{"another request is served", []string{own + " 403", pool + " 200"}, "GET " + own},
			{"served again", []string{own + " 403", pool + " 403", pool + " 200"}, ""},
			{"an object of users", []string{users + " 403", users + " 403"}, ""},
			{"another account", []string{users + " 401", pool + " 401"}, "every request"},
			{"the account is known again", []string{users + " 401", pool + " 403"}, ""},
		} {
			health := &Health{}
			health.setReady(nil)
			for i, response := range c.responses {
				if i > 0 {
					time.Sleep(time.Minute)
				}
				path, code, _ := strings.Cut(response, " ")
				status, _ := strconv.Atoi(code)
				client := http.Client{Transport: health.Transport(answer(status))}
				_, err := client.Get("http://api" + path)
				must.Succeed(t, err)
			}
			err := health.ready()
			check.Error(t, err, c.want, c.name)
		}
	})
}

// answer is a transport of requests that all have the same status.
type answer int

func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.WriteHeader(int(a))
	return w.Result(), nil
}
