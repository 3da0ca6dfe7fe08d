// Package bench_test compares the plugin with upstream host-local, both built with the same flags
// and on the same disk. `make bench` runs it. The metrics are medians of leasehold, those of the
// other side (-other), and the ratio of both with its 95 % confidence interval (-low, -high).
//
//	bench_test.go      single calls, in alternation
//	concurrent_test.go calls at once, and slow disks
//	agent_test.go      an idle agent, and its memory
//	contender_test.go  a plugin with its own files
package bench_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestMain(m *testing.M) { lab.Main(m) }

// other is what leasehold is compared with. AGAINST, the plugin of another commit, is compared in
// its place in a second run of each benchmark that compares.
var other = "host-local"

// versusOthers runs f for each other.
func versusOthers(b *testing.B, f func(b *testing.B)) {
	defer func(of string) { other = of }(other)
	b.Run("host-local", f)
	if other = os.Getenv("AGAINST"); other != "" {
		b.Run("AGAINST", f)
	}
}

// subnet is large enough for 50,000 leases and a burst. fullSubnet has 8,189 addresses for pods.
const (
	subnet     = "10.64.0.0/16"
	fullSubnet = "10.64.0.0/19"
)

// BenchmarkCalls measures single calls on a node with other leases.
func BenchmarkCalls(b *testing.B) {
	versus := func(name string, leases int, call func(*contender) time.Duration) {
		b.Run(fmt.Sprintf("%s/leases=%d", name, leases), func(b *testing.B) {
			versusOthers(b, func(b *testing.B) {
				ours, theirs := newContender(b, "leasehold", subnet, leases), newContender(b, other, subnet, leases)
				compare(b, func() time.Duration { return call(ours) }, func() time.Duration { return call(theirs) })
			})
		})
	}
	versus("VERSION", 0, func(c *contender) time.Duration { return c.call("VERSION", "bench") })
	for _, leases := range []int{0, 30, 110, 250, 1000, 10_000} {
		versus("ADD+DEL", leases, (*contender).pair)
	}
	versus("DEL", 0, (*contender).del)
	// All holders live. One call every 5 s examines them.
	b.Run("ADD refused in a full pool", func(b *testing.B) {
		c := newContender(b, "leasehold", fullSubnet, 8189)
		var times []time.Duration
		for b.Loop() {
			times = append(times, c.refused())
		}
		report(b, "", percentile(times, 50))
		report(b, "-most", slices.Max(times))
	})
}

// compare calls ours and theirs alternately, so that both are measured under the same conditions.
func compare(b *testing.B, ours, theirs func() time.Duration) {
	ours()
	theirs()
	var our, their []time.Duration
	for n := 0; b.Loop(); n++ {
		if n%2 == 0 {
			our, their = append(our, ours()), append(their, theirs())
		} else {
			their, our = append(their, theirs()), append(our, ours())
		}
	}
	report(b, "", percentile(our, 50))
	report(b, "-other", percentile(their, 50))
	ratio, low, high := medians(our, their)
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(low, "ratio-low")
	b.ReportMetric(high, "ratio-high")
}

// report reports a duration, and not the one of a round, which has more than the measured calls.
func report(b *testing.B, of string, d time.Duration) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(d.Seconds()*1000, "ms"+of)
}

// percentile returns a percentile of times.
func percentile(times []time.Duration, p int) time.Duration {
	return slices.Sorted(slices.Values(times))[min(len(times)-1, len(times)*p/100)]
}

// medians returns the ratio of the medians of a and b, which are pairs, and the bounds of its 95 %
// confidence interval: a bootstrap that draws pairs, so that what slows both calls of a pair does
// not widen the interval.
func medians(a, b []time.Duration) (ratio, low, high float64) {
	of := func(a, b []time.Duration) float64 { return float64(percentile(a, 50)) / float64(percentile(b, 50)) }
	random := rand.New(rand.NewPCG(1, 2)) // the same samples in each run
	as, bs, ratios := slices.Clone(a), slices.Clone(b), make([]float64, 2000)
	for i := range ratios {
		for j := range as {
			k := random.IntN(len(a))
			as[j], bs[j] = a[k], b[k]
		}
		ratios[i] = of(as, bs)
	}
	slices.Sort(ratios)
	return of(a, b), ratios[len(ratios)*25/1000], ratios[len(ratios)*975/1000-1]
}

// fdatasync returns the median time of an fdatasync of one page. The goals of docs/performance.md
// are valid where it is at most 0.3 ms.
func fdatasync(b *testing.B) time.Duration {
	f, err := os.Create(filepath.Join(b.TempDir(), "file"))
	must.Succeed(b, err)
	defer f.Close()
	must.Succeed(b, unix.Fallocate(int(f.Fd()), 0, 0, 1<<20))
	must.Succeed(b, f.Sync())
	var times []time.Duration
	for i := range 300 {
		_, err := f.WriteAt([]byte{byte(i)}, int64(i%256)*4096)
		must.Succeed(b, err)
		began := time.Now()
		must.Succeed(b, unix.Fdatasync(int(f.Fd())))
		times = append(times, time.Since(began))
	}
	return percentile(times, 50)
}
