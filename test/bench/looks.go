package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
	"github.com/leasehold-cni/leasehold/test/lab"
)

// looks measures how long a caller waits for the store while tasks of the agent read all leases
// without a pause. In the agent three tasks do so after every change (windows, reservations,
// events), and the collector periodically. The caller changes nothing, so that its duration is the
// waiting time.
func (b *bench) looks() {
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	fmt.Fprintln(details,
		"\nan empty transaction while tasks of the agent read all leases without a pause; times in ms")
	w := tabwriter.NewWriter(details, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, "LEASES\tTASKS\tCALLS\tP50\tP99\tMAX\tONE READ, P50")
	for _, leases := range []int{250, 1000, 10000} {
		c := b.contender("leasehold", leases)
		var alone float64
		for _, tasks := range []int{0, 1, 5} {
			calls, looks := c.callBesideLooks(tasks, b.rounds(300))
			p99 := inMS(percentile(calls, 99))
			if tasks == 0 {
				alone = p99
			} else {
				what := fmt.Sprintf("p99 of an empty transaction at %d leases beside %d readers", leases, tasks)
				b.add(figure{Figure: what, Unit: "ms", Leasehold: p99, Other: alone, Against: "without them"})
			}
			look := "-"
			if len(looks) > 0 {
				look = ms(percentile(looks, 50))
			}
			fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%s\t%s\t%s\n", leases, tasks, len(calls), ms(percentile(calls, 50)),
				ms(percentile(calls, 99)), ms(percentile(calls, 100)), look)
		}
	}
	w.Flush()
	fmt.Fprintln(details,
		"\n64 tasks of the agent with small reads (announcements, a scrape) while callers commit; times in ms")
	w = tabwriter.NewWriter(details, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, "CALLERS\tWORK OF EACH\tCOMMITS/S\tREADS/S\tREAD P50\tP99")
	c := b.contender("leasehold", 250)
	for _, work := range []time.Duration{0, 10 * time.Millisecond} {
		const callers, lasts = 8, 1500 * time.Millisecond
		commits, reads := c.readBesideCommits(callers, 64, work, lasts)
		fmt.Fprintf(w, "%d\t%s\t%.0f\t%.0f\t%s\t%s\n", callers, ms(float64(work)), float64(commits)/lasts.Seconds(),
			float64(len(reads))/lasts.Seconds(), ms(percentile(reads, 50)), ms(percentile(reads, 99)))
	}
	w.Flush()
}

// readBesideCommits returns the number of commits, and the durations of the small reads.
func (c *contender) readBesideCommits(callers, tasks int, work, lasts time.Duration) (commits int,
	reads []time.Duration) {
	ctx, stop := context.WithTimeout(context.Background(), lasts)
	defer stop()
	var mu sync.Mutex
	var wait sync.WaitGroup
	repeat := func(call func() error, done func(time.Duration)) {
		wait.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				c.b.check(call())
				mu.Lock()
				done(time.Since(began))
				mu.Unlock()
			}
		})
	}
	for range callers {
		caller := c.store() // like a separate process
		commit := func(tx *store.Tx) error {
			time.Sleep(work)
			return tx.Count("bench", 1)
		}
		repeat(func() error { return caller.Update(context.Background(), commit) }, func(time.Duration) { commits++ })
	}
	agent := c.store()
	read := func(tx *store.Tx) error {
		_, err := tx.ByHolder("nobody", "eth0")
		return err
	}
	for range tasks {
		repeat(func() error { return agent.View(context.Background(), read) },
			func(took time.Duration) { reads = append(reads, took) })
	}
	wait.Wait()
	return commits, reads
}

func (c *contender) callBesideLooks(tasks, rounds int) (calls, looks []time.Duration) {
	host, err := env.Read(func(string) string { return "" })
	c.b.check(err)
	agent := &maintain.Service{Node: &transact.Node{Store: c.store(), Host: host.Host, Clock: host.Clock}}
	ctx, stop := context.WithCancel(context.Background())
	var mu sync.Mutex
	var wait sync.WaitGroup
	for range tasks {
		wait.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				_, err := agent.List(ctx, func(lease.Lease) bool { return true })
				if err != nil {
					if !errors.Is(err, context.Canceled) && ctx.Err() == nil {
						c.b.check(err)
					}
					return
				}
				mu.Lock()
				looks = append(looks, time.Since(began))
				mu.Unlock()
			}
		})
	}
	caller := c.store()
	for range rounds {
		time.Sleep(2 * time.Millisecond)
		began := time.Now()
		c.b.check(caller.Update(context.Background(), func(*store.Tx) error { return nil }))
		calls = append(calls, time.Since(began))
	}
	stop()
	wait.Wait()
	return calls, looks
}
