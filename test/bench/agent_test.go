package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/must"
)

// BenchmarkIdle measures an idle agent with 250 leases for 90 s: without an API server, otherwise
// as in the DaemonSet, with its probes and scrapes.
func BenchmarkIdle(b *testing.B) {
	once(b, func() {
		c := newContender(b, "leasehold", subnet, 250)
		c.call("ADD", "bench")
		a := c.agent()
		for path, every := range map[string]time.Duration{"readyz": 5 * time.Second, "healthz": 20 * time.Second,
			"metrics": 15 * time.Second} {
			a.visit(path, every)
		}
		time.Sleep(12 * time.Second) // its start
		began, before := time.Now(), a.cpu()
		time.Sleep(90 * time.Second)
		b.ReportMetric(100*(a.cpu()-before).Seconds()/time.Since(began).Seconds(), "%-of-a-processor")
		a.reportMemory()
	})
}

// BenchmarkMemory measures the memory of an agent whose store holds addresses for pods that are
// away, while more clients scrape it than it serves at a time. The limit in daemonset.yaml is
// chosen by it.
func BenchmarkMemory(b *testing.B) {
	for _, leases := range []int{250, 1000, 10_000, 50_000} {
		b.Run(fmt.Sprintf("held=%d", leases), func(b *testing.B) {
			once(b, func() {
				c := newContender(b, "leasehold", subnet, leases)
				c.hold()
				c.call("ADD", "bench")
				a := c.agent()
				for range 8 {
					a.visit("metrics", 0)
				}
				time.Sleep(time.Minute)
				a.reportMemory()
			})
		})
	}
}

// hold releases all leases of the store, whose windows begin.
func (c *contender) hold() {
	c.update(func(tx *store.Tx) error {
		var all []lease.Lease
		for l, err := range tx.All {
			must.Succeed(c.b, err)
			all = append(all, l)
		}
		for _, l := range all {
			held, err := lease.Apply(l, lease.Release{Holder: l.Holder}, l.BoundAt)
			if err == nil {
				err = tx.Put(l.Pool, l.Address, held)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// agent is the agent of a contender's node, which ends with the benchmark.
type agent struct {
	*contender
	pid    int
	client *http.Client
}

// agent starts an agent and waits until it is ready.
func (c *contender) agent() *agent {
	a := &agent{contender: c, client: &http.Client{Transport: &http.Transport{DialContext: func(_ context.Context,
		network, addr string) (conn net.Conn, err error) {
		err = c.node.Do(func() error {
			conn, err = net.Dial(network, addr)
			return err
		})
		return conn, err
	}}}}
	a.pid = c.node.Agent("--metrics-addr=:9470")
	background.Until(c.b, "the agent is ready", func() bool { return a.get("readyz") == http.StatusOK })
	return a
}

func (a *agent) get(path string) (status int) {
	r, err := a.client.Get("http://127.0.0.1:9470/" + path)
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	return r.StatusCode
}

// visit asks for a path at once and again after each pause, until the benchmark ends.
func (a *agent) visit(path string, pause time.Duration) {
	ctx := a.b.Context()
	go func() {
		for ctx.Err() == nil {
			a.get(path)
			time.Sleep(pause)
		}
	}()
}

// cpu returns the CPU time of the agent.
func (a *agent) cpu() time.Duration {
	stat := must.Read(a.b, fmt.Sprintf("/proc/%d/stat", a.pid))
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')'):]))
	user, err1 := strconv.Atoi(fields[12])
	system, err2 := strconv.Atoi(fields[13])
	must.Succeed(a.b, err1)
	must.Succeed(a.b, err2)
	return time.Duration(user+system) * time.Second / 100 // USER_HZ
}

// reportMemory reports how much memory of the agent is resident, and was at most.
func (a *agent) reportMemory() {
	status := must.Read(a.b, fmt.Sprintf("/proc/%d/status", a.pid))
	a.b.ReportMetric(0, "ns/op")
	for unit, name := range map[string]string{"MiB": "VmRSS:", "MiB-most": "VmHWM:"} {
		_, rest, _ := strings.Cut(string(status), name)
		kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
		must.Succeed(a.b, err)
		a.b.ReportMetric(kib/1024, unit)
	}
}
