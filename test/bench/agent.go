package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/lab"
)

const (
	expiredHolds = 10_000
	workers      = 16
)

// collect lets the agent end 10,000 holds at once while 16 workers call ADD and DEL on the same store, in another network,
// so that they do not end them themselves. Then it has a tenth of a processor (a quota on its cgroup), and a fifth of the holds.
func (b *bench) collect() {
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	sync := fdatasync(b, b.node.Dir)
	fmt.Printf("\n%d expired holds collected while %d workers call ADD and DEL; one fdatasync here: p50 %s ms, p99 %s ms\n\n",
		b.rounds(expiredHolds), workers, ms(percentile(sync, 50)), ms(percentile(sync, 99)))
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, "RUN\tCALLS\tCALL P50\tCALL P99\tCOLLECTED\tAGENT'S LONGEST LOCK\tLOCKS OVER 2 MS")
	b.collectOnce(w, "agent", "", b.rounds(expiredHolds))
	w.Flush()
	if group, why := newQuota(); why == "" {
		b.Cleanup(group.remove)
		b.collectOnce(w, "agent with a tenth of a processor", group.procs, b.rounds(expiredHolds/5))
	} else {
		fmt.Fprintf(w, "agent with a tenth of a processor\tnot measured: %s\n", why)
	}
	w.Flush()
	fmt.Println("\ntimes in ms; the rows without the agent are of the same workers, before and after it. Goal: no lock over 2 ms where one\nfdatasync takes at most 0.3 ms.")
}

func (b *bench) collectOnce(w *tabwriter.Writer, name, cgroup string, holds int) {
	c := b.contender("leasehold", 0)
	// Pods that nothing is kept for: these have no namespace of their own, so nobody could announce them.
	c.stdin = strings.Replace(c.stdin, `"io.kubernetes.cri/reserved-ip-duration":"10"`, "", 1)
	c.call("ADD", c.id()) // one that stays, and the plugin's word of where it runs
	c.expire(holds)
	calm := time.Duration(b.rounds(10)) * time.Second

	fmt.Fprintf(os.Stderr, "  %s: workers alone, then with it\n", name)
	before := c.work(func() { time.Sleep(calm) })
	var took time.Duration
	a := &agentRun{c: c, cgroup: cgroup}
	during := c.work(func() {
		began := time.Now()
		a.start("--log-level=debug")
		a.waitFor(func() bool { return a.collected() >= holds }, 30*time.Minute)
		took = time.Since(began)
	})
	longest, over := a.stop()
	after := c.work(func() { time.Sleep(calm) })

	line := func(name string, times []time.Duration, rest string) {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", name, len(times), ms(percentile(times, 50)), ms(percentile(times, 99)), rest)
	}
	line("no "+name+", before", before, "-\t-\t-")
	line(name, during, fmt.Sprintf("%d in %.1f s\t%s\t%s", holds, took.Seconds(), ms(float64(longest)), over))
	line("no "+name+", after", after, "-\t-\t-")
}

// expire gives a network of its own holds that are over.
func (c *contender) expire(n int) {
	clock, err := env.Read(func(string) string { return "" })
	c.b.check(err)
	now := clock.Clock()
	now.BootID = clock.Host.BootID()
	then := now
	then.Wall, then.Boot = now.Wall.Add(-time.Hour), now.Boot-time.Hour
	p := lease.Pool{DataDir: c.dataDir(), Network: "over"}
	dir := filepath.Join(c.dataDir(), "over")
	c.b.check(os.MkdirAll(dir, 0o755))
	c.b.check(os.WriteFile(filepath.Join(dir, ".leasehold"), nil, 0o600)) // as the mirror has it
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
				Window: time.Minute, Soft: time.Minute,
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
			if err := os.WriteFile(filepath.Join(dir, next.String()), []byte("#held -"), 0o600); err != nil {
				return err
			}
		}
		return tx.SetKnown(p)
	}))
}

func (c *contender) store() *store.Store {
	return store.New(store.Dirs{State: filepath.Join(c.dir, "state"), Run: filepath.Join("/run/lab", filepath.Base(c.dir))})
}

// work runs the workers while something goes on, and returns how long each of their calls took.
func (c *contender) work(meanwhile func()) []time.Duration {
	var mu sync.Mutex
	var all []time.Duration
	done := make(chan struct{})
	var wait sync.WaitGroup
	for i := range workers {
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
					cmd := c.command(verb, id, fmt.Sprint("worker-", i))
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

// idle is what an agent costs that has 250 leases to look after, and nothing to do.
func (b *bench) idle() {
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	c := b.contender("leasehold", 250)
	c.call("ADD", c.id())
	a := &agentRun{c: c}
	a.start("--log-level=debug")
	a.waitFor(func() bool { return strings.Contains(a.text(), "msg=looked") }, time.Minute)
	time.Sleep(12 * time.Second) // the start and the first snapshot are over
	length := time.Duration(b.rounds(90)) * time.Second
	began, before := time.Now(), a.cpu()
	time.Sleep(length)
	share := (a.cpu() - before).Seconds() / time.Since(began).Seconds()
	resident, peak := a.memory("VmRSS"), a.memory("VmHWM")
	a.stop()

	fmt.Printf("\nan idle agent with 250 leases, over %v\n\n", length)
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tMEASURED\tGOAL\tMET")
	yes := map[bool]string{true: "yes", false: "NO"}
	fmt.Fprintf(w, "resident memory, MiB\t%.1f (at most %.1f)\t<= 40\t%s\n", resident, peak, yes[resident <= 40])
	fmt.Fprintf(w, "processor, %% of a core\t%.3f\t<= 0.2\t%s\n", share*100, yes[share*100 <= 0.2])
	w.Flush()
}

// An agentRun is the agent on a contender's files.
type agentRun struct {
	c      *contender
	cgroup string // its file of processes, "" for none
	cmd    *exec.Cmd
	mu     sync.Mutex
	out    bytes.Buffer
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
	script := "exec " + lab.Bin("leasehold-agent") + " --no-kube --metrics-addr= " + strings.Join(args, " ")
	if a.cgroup != "" {
		script = "echo $$ > " + a.cgroup + " && " + script
	}
	a.cmd = exec.Command("sh", "-c", script)
	a.cmd.Env = append(os.Environ(), a.c.env...)
	a.cmd.Stdout, a.cmd.Stderr = a, a
	a.c.b.check(a.cmd.Start())
	a.c.b.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			a.cmd.Process.Kill()
			a.cmd.Wait()
		}
	})
}

func (a *agentRun) waitFor(isSo func() bool, most time.Duration) {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if isSo() {
			return
		}
	}
	text := a.text()
	a.c.b.Fatalf("the agent has not come to it:\n%s", text[max(0, len(text)-4000):])
}

// collected is how many steps the agent says that it has taken.
func (a *agentRun) collected() (n int) {
	for _, m := range collectedSteps.FindAllStringSubmatch(a.text(), -1) {
		steps, err := strconv.Atoi(m[1])
		a.c.b.check(err)
		n += steps
	}
	return n
}

var (
	collectedSteps = regexp.MustCompile(`msg=collected steps=(\d+) `)
	longestLock    = regexp.MustCompile(`the agent has stopped" longestLock=(\S+) locks=(\d+) over2ms=(\d+)`)
	clockTick      = time.Second / 100 // USER_HZ
)

// stop ends the agent, and returns what it says of its locks.
func (a *agentRun) stop() (longest time.Duration, over string) {
	a.cmd.Process.Signal(syscall.SIGTERM)
	a.c.b.check(a.cmd.Wait())
	m := longestLock.FindStringSubmatch(a.text())
	if m == nil {
		a.c.b.Fatalf("the agent says nothing of its locks:\n%.4000s", a.text())
	}
	longest, err := time.ParseDuration(m[1])
	a.c.b.check(err)
	return longest, m[3] + " of " + m[2]
}

// cpu is the processor time of the agent until now.
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

// memory is a figure of /proc/PID/status, in MiB.
func (a *agentRun) memory(name string) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	a.c.b.check(err)
	_, rest, _ := strings.Cut(string(status), name+":")
	kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	a.c.b.check(err)
	return kib / 1024
}

// A quota is a cgroup with a tenth of a processor.
type quota struct{ dir, procs string }

// newQuota makes one, of the first or the second version of cgroups; or says why it cannot.
func newQuota() (q quota, why string) {
	for _, v := range []struct{ root, file, content, needs string }{
		{"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "10000", "cpu.cfs_quota_us"},
		{"/sys/fs/cgroup", "cpu.max", "10000 100000", "cgroup.controllers"},
	} {
		if _, err := os.Stat(filepath.Join(v.root, v.needs)); err != nil {
			why = err.Error()
			continue
		}
		dir, err := os.MkdirTemp(v.root, "leasehold-bench-")
		if err != nil {
			return q, err.Error()
		}
		q = quota{dir: dir, procs: filepath.Join(dir, "cgroup.procs")}
		if err := os.WriteFile(filepath.Join(q.dir, v.file), []byte(v.content), 0o644); err != nil {
			q.remove()
			return q, err.Error()
		}
		return q, ""
	}
	return q, why
}

func (q quota) remove() { os.Remove(q.dir) }
