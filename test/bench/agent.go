package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// rest is the time for the start before the measurement.
const rest = 12 * time.Second

// idle measures an idle agent with 250 leases: without an API server, otherwise as in the
// DaemonSet, with its probes and scrapes.
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

const clockTick = time.Second / 100 // USER_HZ

// stop stops the agent.
func (a *agentRun) stop() {
	a.cmd.Process.Signal(syscall.SIGTERM)
	a.c.b.check(a.cmd.Wait())
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
