package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

var (
	base  = flag.String("against", "", "compare with the plugin of another commit, a `program`, and run nothing else")
	pairs = flag.Int("pairs", 300, "the `number` of pairs for -against")
)

// resamples is the number of samples from which the bootstrap estimates an interval.
const resamples = 2000

// against compares ADD and DEL of two builds of leasehold, on nodes with 0, 250 and 1,000 other
// leases. Each build makes these leases itself, because an older build may not read a store of a
// newer one. It prints the ratio of the medians with its 95 % confidence interval: a bootstrap that
// draws pairs, so that what slows both calls of a pair does not widen the interval.
func (b *bench) against() {
	if info, err := os.Stat(*base); err != nil || !info.Mode().IsRegular() {
		b.Fatalf("-against: %q is not a program; build the other commit and name its bin/leasehold", *base)
	}
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, "ADD+DEL AT\tPAIRS\tTHIS, ms\tOTHER, ms\tRATIO\t95 % INTERVAL")
	for _, leases := range []int{0, 250, 1000} {
		this, other := b.build(lab.Bin("leasehold"), leases), b.build(*base, leases)
		ours, theirs := interleave(b.rounds(*pairs), this.pair, other.pair)
		ratio, low, high := medians(ours, theirs)
		fmt.Fprintf(w, "%d leases\t%d\t%s\t%s\t%.3f\t%.3f - %.3f\n", leases, len(ours),
			ms(percentile(ours, 50)), ms(percentile(theirs, 50)), ratio, low, high)
	}
	w.Flush()
}

// build returns a contender that runs the program, with a number of leases that the program itself
// made.
func (b *bench) build(program string, leases int) *contender {
	c := b.contender("leasehold", 0)
	c.program = filepath.Join(c.dir, "program")
	b.copy(program, c.program)
	for i := range leases {
		c.pod = fmt.Sprint("filled-", i)
		c.call("ADD", c.id())
	}
	c.pod = "bench"
	return c
}

// pair returns the duration of an ADD and a DEL of a new container.
func (c *contender) pair() time.Duration {
	id := c.id()
	return c.call("ADD", id) + c.call("DEL", id)
}

// medians returns the ratio of the medians of a and b, which are pairs, and the bounds of its 95 %
// confidence interval.
func medians(a, b []time.Duration) (ratio, low, high float64) {
	ratio = percentile(a, 50) / percentile(b, 50)
	random := rand.New(rand.NewPCG(1, 2)) // the same samples in each run
	as, bs := make([]time.Duration, len(a)), make([]time.Duration, len(b))
	ratios := make([]float64, resamples)
	for i := range ratios {
		for j := range as {
			k := random.IntN(len(a))
			as[j], bs[j] = a[k], b[k]
		}
		ratios[i] = percentile(as, 50) / percentile(bs, 50)
	}
	slices.Sort(ratios)
	return ratio, ratios[resamples*25/1000], ratios[resamples*975/1000-1]
}
