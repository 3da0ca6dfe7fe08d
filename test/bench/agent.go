package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/lab"
)

const (
	expiredHolds = 10_000
	workers      = 16
	// mostCollecting limits the measurement, because the agent yields to callers that never pause.
	mostCollecting = 3 * time.Minute
)

// collect measures how the agent ends 10,000 expired holds while 16 workers call ADD and DEL on the
// same store, in another network, so that they do not end them themselves.
func (b *bench) collect() {
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	holds := b.rounds(expiredHolds)
	c := b.contender("leasehold", 0)
	// Pods without retention: these have no namespaces, so that their addresses could not be
	// announced.
	c.stdin = withoutWindow(c.stdin)
	c.call("ADD", c.id()) // so that the plugin records its namespaces
	c.expire(holds)
	calm := time.Duration(b.rounds(10)) * time.Second

	b.progress("workers alone, then with the agent")
	var commits []time.Duration
	before := c.work(func() { commits = c.commits(calm) })
	var took time.Duration
	left := holds
	a := &agentRun{c: c}
	during := c.work(func() {
		began := time.Now()
		a.start("--log-level=debug")
		for ; left > 0 && took < mostCollecting; took = time.Since(began) {
			time.Sleep(50 * time.Millisecond)
			left = c.overdue()
		}
	})
	longest := a.stop()
	after := c.work(func() { time.Sleep(calm) })
	b.add(figure{Figure: "p99 of calls beside a collecting agent", Unit: "ms",
		Leasehold: inMS(percentile(during, 99)), Other: inMS(percentile(append(before, after...), 99)),
		Against: "without it"}.atMost(1.1))
	b.add(figure{Figure: "holds that it collected", Unit: "in a second",
		Leasehold: float64(holds-left) / took.Seconds()})
	b.add(figure{Figure: "its longest lock", Unit: "ms", Leasehold: inMS(float64(longest)),
		Other: inMS(percentile(commits, 100)), Against: "longest small commit"})
}

// commits measures how long the smallest possible commit holds the lock. On a busy machine no other
// transaction is shorter.
func (c *contender) commits(length time.Duration) (held []time.Duration) {
	s := c.store()
	s.Timed = func(t store.Timing) { held = append(held, t.Held) }
	for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		c.b.check(s.Update(context.Background(), func(tx *store.Tx) error { return tx.Count("bench", 1) }))
	}
	return held
}

// overdue returns the number of expire's holds that are left, by their files.
func (c *contender) overdue() int {
	files, err := filepath.Glob(filepath.Join(c.dataDir(), "over", "10.*"))
	c.b.check(err)
	return len(files)
}

// expire creates n expired holds in a separate network.
func (c *contender) expire(n int) {
	host, err := env.Read(func(string) string { return "" })
	c.b.check(err)
	now := host.Clock()
	then := now
	then.Wall, then.Boot = now.Wall.Add(-time.Hour), now.Boot-time.Hour
	p := lease.Pool{DataDir: c.dataDir(), Network: "over"}
	c.b.check(os.MkdirAll(filepath.Join(c.dataDir(), "over"), 0o755))
	files, err := hostlocal.Open(context.Background(), p)
	c.b.check(err)
	defer files.Close()
	next := netip.MustParseAddr("10.65.0.1")
	c.b.check(c.store().Update(context.Background(), func(tx *store.Tx) error {
		for i := range n {
			next = next.Next()
			l, err := lease.Apply(lease.Lease{}, lease.Bind{
				ID: fmt.Sprintf("%016x", i), Pool: p, Address: next, Set: "over",
				Namespace: "default", Name: fmt.Sprint("over-", i), UID: fmt.Sprint("uid-", i),
				Holder: lease.Holder{
					ContainerID: fmt.Sprintf("over-%059d", i), IfName: "eth0", BootID: now.BootID,
					Netns: lease.Netns{Path: fmt.Sprint("/run/netns/over-", i), Dev: 4, Ino: uint64(i) + 1},
				},
				Window: lease.Window(time.Minute), Soft: time.Minute,
			}, then)
			if err == nil {
				l, err = lease.Apply(l, lease.Release{Holder: l.Holder}, then)
			}
			if err == nil {
				err = tx.Put(p, next, l)
			}
			if err != nil {
				return err
			}
			if err := files.Write(l, now); err != nil {
				return err
			}
		}
		if err := files.SetMark(true); err != nil {
			return err
		}
		return tx.SetAdopted(p)
	}))
}

func (c *contender) store() *store.Store {
	return store.New(store.Dirs{State: filepath.Join(c.dir, "state"), Run: filepath.Join("/run/lab",
		filepath.Base(c.dir))})
}

// work runs the workers during meanwhile, and returns the durations of their calls.
func (c *contender) work(meanwhile func()) []time.Duration {
	var mu sync.Mutex
	var all []time.Duration
	done := make(chan struct{})
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				mu.Lock()
				id := c.id()
				mu.Unlock()
				for _, verb := range []string{"ADD", "DEL"} {
					// Each ADD reads the soft holds of its name, which would add up.
					cmd := c.command(verb, id, "worker-"+id)
					began := time.Now()
					err := cmd.Run()
					took := time.Since(began)
					c.failed(cmd, err)
					mu.Lock()
					all = append(all, took)
					mu.Unlock()
				}
			}
		})
	}
	meanwhile()
	close(done)
	wait.Wait()
	return all
}

// rest is the time for the start before the measurement.
const rest = 12 * time.Second

// idle measures an idle agent with 250 leases: without an API server, otherwise as in the
// DaemonSet, with its probes and scrapes. The DaemonSet's agent is measured in a cluster (test/e2e,
// scenario many-pods).
func (b *bench) idle() {
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	c := b.contender("leasehold", 250)
	c.call("ADD", c.id())
	a := &agentRun{c: c}
	a.start("--log-level=debug")
	a.waitFor(func() bool {
		return strings.Contains(a.text(), `msg="node surveyed"`) && strings.Contains(a.text(), "msg=serving")
	}, time.Minute)
	leave := a.visit()
	length := time.Duration(b.rounds(90)) * time.Second
	b.progress("%v of rest, then %v", rest, length)
	time.Sleep(rest)
	began, before := time.Now(), a.cpu()
	time.Sleep(length)
	share := (a.cpu() - before).Seconds() / time.Since(began).Seconds()
	resident, peak := a.memory("VmRSS"), a.memory("VmHWM")
	leave()
	a.stop()

	what := fmt.Sprintf("idle agent with 250 leases, over %v: ", length)
	b.add(figure{Figure: what + "resident memory", Unit: "MiB", Leasehold: resident}.below(40))
	b.add(figure{Figure: what + "at most", Unit: "MiB", Leasehold: peak})
	b.add(figure{Figure: what + "processor", Unit: "% of one", Leasehold: share * 100}.below(0.2))
}

// visit sends the requests of a kubelet and a Prometheus to the agent until stop is called.
func (a *agentRun) visit() (stop func()) {
	const (
		readiness = 5 * time.Second // as in daemonset.yaml
		liveness  = 4               // once per so many readiness probes
		scrape    = 3
	)
	client := a.client()
	ask := func(path string) {
		r, err := client.Get("http://127.0.0.1:9470" + path)
		a.c.b.check(err)
		defer r.Body.Close()
		if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != http.StatusOK {
			a.c.b.Fatalf("%s: %s, %v", path, r.Status, err)
		}
	}
	ended, ticker := make(chan struct{}), time.NewTicker(readiness)
	var prober sync.WaitGroup
	prober.Go(func() {
		for n := 0; ; n++ {
			for path, every := range map[string]int{"/readyz": 1, "/healthz": liveness, "/metrics": scrape} {
				if n%every == 0 {
					ask(path)
				}
			}
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
		}
	})
	return func() { ticker.Stop(); close(ended); prober.Wait() }
}

// client returns a client in the node's network namespace.
func (a *agentRun) client() *http.Client {
	dial := func(_ context.Context, network, addr string) (conn net.Conn, err error) {
		err = a.c.b.node.Do(func() error {
			conn, err = net.Dial(network, addr)
			return err
		})
		return conn, err
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}}
}

// scrape scrapes the agent without a pause until stop is called. Some scrapes are refused.
func (a *agentRun) scrape() (stop func()) {
	client := a.client()
	ended := make(chan struct{})
	var scraper sync.WaitGroup
	scraper.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
			}
			r, err := client.Get("http://127.0.0.1:9470/metrics")
			a.c.b.check(err)
			_, err = io.Copy(io.Discard, r.Body)
			r.Body.Close()
			a.c.b.check(err)
		}
	})
	return func() { close(ended); scraper.Wait() }
}

// An agentRun is an agent process with a contender's files.
type agentRun struct {
	c   *contender
	cmd *exec.Cmd
	mu  sync.Mutex
	out bytes.Buffer
}

func (a *agentRun) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out.Write(p)
}

func (a *agentRun) text() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out.String()
}

func (a *agentRun) start(args ...string) {
	a.cmd = exec.Command(lab.Bin("leasehold-agent"), append([]string{"--no-kube"}, args...)...)
	a.cmd.Env = append(os.Environ(), a.c.env...)
	a.cmd.Stdout, a.cmd.Stderr = a, a
	a.c.b.check(a.c.b.node.Do(a.cmd.Start)) // in the node's network namespace, where its port is free
	a.c.b.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			a.cmd.Process.Kill()
			a.cmd.Wait()
		}
	})
}

func (a *agentRun) waitFor(done func() bool, most time.Duration) {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if done() {
			return
		}
	}
	text := a.text()
	a.c.b.Fatalf("timed out waiting for the agent; log:\n%s", text[max(0, len(text)-4000):])
}

var (
	longestLock = regexp.MustCompile(`msg="agent stopped" longestLock=(\S+)`)
	clockTick   = time.Second / 100 // USER_HZ
)

// stop stops the agent, and returns its longest lock, from its log.
func (a *agentRun) stop() (longest time.Duration) {
	a.cmd.Process.Signal(syscall.SIGTERM)
	a.c.b.check(a.cmd.Wait())
	m := longestLock.FindStringSubmatch(a.text())
	if m == nil {
		a.c.b.Fatalf("no lock statistics in the agent's log:\n%.4000s", a.text())
	}
	longest, err := time.ParseDuration(m[1])
	a.c.b.check(err)
	return longest
}

// cpu returns the CPU time of the agent.
func (a *agentRun) cpu() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.cmd.Process.Pid))
	a.c.b.check(err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')'):]))
	user, err1 := strconv.Atoi(fields[12])
	system, err2 := strconv.Atoi(fields[13])
	a.c.b.check(err1)
	a.c.b.check(err2)
	return time.Duration(user+system) * clockTick
}

// memory returns a value of /proc/PID/status, in MiB.
func (a *agentRun) memory(name string) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	a.c.b.check(err)
	_, rest, _ := strings.Cut(string(status), name+":")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	a.c.b.check(err)
	return kib / 1024
}
