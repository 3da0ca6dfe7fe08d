package bench_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// once runs f in the first round of a benchmark alone, because f takes long enough.
func once(b *testing.B, f func()) {
	for first := true; b.Loop(); first = false {
		if first {
			f()
		}
	}
}

// BenchmarkParallel measures bursts of 64 concurrent ADDs.
func BenchmarkParallel(b *testing.B) {
	for _, leases := range []int{0, 1000} {
		b.Run(fmt.Sprintf("leases=%d", leases), func(b *testing.B) {
			versusOthers(b, func(b *testing.B) {
				ours, theirs := newContender(b, "leasehold", subnet, leases), newContender(b, other, subnet, leases)
				var our, their []time.Duration
				once(b, func() {
					for range 10 {
						_, times := ours.concurrently(64, 64)
						our = append(our, times["ADD"]...)
						_, times = theirs.concurrently(64, 64)
						their = append(their, times["ADD"]...)
					}
				})
				report(b, "-p99", percentile(our, 99))
				report(b, "-p99-other", percentile(their, 99))
			})
		})
	}
}

// BenchmarkStorm measures 250 ADDs and then 250 DELs, as after a node's boot and in its drain, also
// on a disk on which a sync takes 5 ms longer. Then it measures one ADD and DEL at a time there.
func BenchmarkStorm(b *testing.B) {
	for _, delay := range []time.Duration{0, 5 * time.Millisecond} {
		for _, pods := range []string{"plain", "retained"} {
			b.Run(fmt.Sprintf("sync=+%v/%s", delay, pods), func(b *testing.B) {
				disk := lab.NewSlowDisk(b, delay)
				once(b, func() {
					for side, name := range map[string]string{"": "leasehold", "-other": other} {
						c := newContender(b, name, subnet, 0)
						c.node.Disk = disk
						if pods == "plain" {
							c.sandbox.Capabilities = nil
						}
						total, _ := c.concurrently(250, 16)
						report(b, "-ADDs"+side, total["ADD"])
						report(b, "-DELs"+side, total["DEL"])
					}
				})
			})
		}
	}
	for _, leases := range []int{0, 30} {
		b.Run(fmt.Sprintf("one at a time, against two syncs more/leases=%d", leases), func(b *testing.B) {
			disk := lab.NewSlowDisk(b, 5*time.Millisecond)
			ours, theirs := newContender(b, "leasehold", subnet, leases), newContender(b, other, subnet, leases)
			var sync time.Duration
			disk.Do(func() { sync = fdatasync(b) })
			ours.node.Disk, theirs.node.Disk = disk, disk
			syncs := map[string]int{}
			compare(b, func() (took time.Duration) {
				for _, verb := range []string{"ADD", "DEL"} {
					before := disk.Syncs()
					took += ours.call(verb, "bench")
					syncs[verb] = disk.Syncs() - before
				}
				return took
			}, func() time.Duration { return theirs.pair() + 2*sync })
			report(b, "-fdatasync", sync)
			b.ReportMetric(float64(syncs["ADD"]), "syncs-of-ADD")
			b.ReportMetric(float64(syncs["DEL"]), "syncs-of-DEL")
		})
	}
}

// concurrently makes n ADDs, and then the DELs, by a number of workers. It returns the duration of
// all calls of a verb, and of each.
func (c *contender) concurrently(n, workers int) (total map[string]time.Duration, times map[string][]time.Duration) {
	total, times = map[string]time.Duration{}, map[string][]time.Duration{}
	var calls []lab.Call
	for i := range n {
		calls = append(calls, c.prepare("ADD", fmt.Sprint("storm-", i)))
	}
	c.call("VERSION", "bench") // reads the program from the disk
	for _, verb := range []string{"ADD", "DEL"} {
		var mu sync.Mutex
		var wait sync.WaitGroup
		next := make(chan lab.Call)
		began := time.Now()
		for range workers {
			wait.Go(func() {
				for call := range next {
					took := c.do(call)
					mu.Lock()
					times[verb] = append(times[verb], took)
					mu.Unlock()
				}
			})
		}
		for _, call := range calls {
			call.Verb = verb
			next <- call
		}
		close(next)
		wait.Wait()
		total[verb] = time.Since(began)
	}
	return total, times
}
