package bench_test

import (
	"fmt"
	"net/netip"
	"slices"
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

// BenchmarkOthers measures calls of one network, one after the other, while an ADD of another
// network on the node has much to do: it imports files, meets files of which the store knows no
// lease, or has many ranges.
func BenchmarkOthers(b *testing.B) {
	measure := func(name string, ipam lab.Conf, prepare func(*contender)) {
		b.Run(name, func(b *testing.B) {
			once(b, func() {
				big := newContender(b, "leasehold", subnet, 0)
				small := &contender{b: b, node: big.node, net: big.net, sandbox: big.sandbox}
				small.call("ADD", "first")
				big.net = big.node.Network("big", "1.0.0",
					big.node.Bridge(lab.With(lab.With(big.node.IPAM(subnet), lab.Conf{"type": "leasehold"}), ipam)))
				prepare(big)
				done, began := make(chan bool), time.Now()
				go func() {
					call := big.prepare("ADD", "second")
					for big.node.Call(call).Exit != 0 { // a runtime repeats it
					}
					close(done)
				}()
				var others []time.Duration
				for working := true; working; {
					others = append(others, small.call("ADD", "bench"), small.call("DEL", "bench"))
					select {
					case <-done:
						working = false
					default:
					}
				}
				report(b, "", time.Since(began))
				report(b, "-others-median", percentile(others, 50))
				report(b, "-others-most", slices.Max(others))
			})
		})
	}
	measure("import of 50,000 files", nil, func(c *contender) { c.fillHostLocal(50_000) })
	measure("64,000 files of others", nil, func(c *contender) {
		c.call("ADD", "first")
		c.fillHostLocal(64_000)
	})
	var ranges []lab.Conf
	for first := netip.MustParseAddr("10.65.0.1"); len(ranges) < 20_000; {
		last := first.Next()
		ranges = append(ranges, lab.Conf{"subnet": "10.64.0.0/14", "rangeStart": first.String(),
			"rangeEnd": last.String()})
		first = last.Next().Next()
	}
	measure("20,000 ranges", lab.Conf{"ranges": [][]lab.Conf{ranges}}, func(*contender) {})
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
