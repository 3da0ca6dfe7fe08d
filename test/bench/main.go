// Bench compares the plugin with upstream host-local, both built with the same flags and on the
// same disk, in alternating calls. `make bench` runs it. It does not fail if a goal is missed.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
)

var (
	quick = flag.Bool("quick", false, "run a tenth of the rounds, to check that it works")
	only  = flag.String("run", "", "run only the parts that match the regular `expression`")
)

// parts are the independent parts of the benchmark.
var parts = []part{
	{"calls", (*bench).calls},
	{"connect", (*bench).connect},
	{"collect", (*bench).collect},
	{"idle", (*bench).idle},
	{"looks", (*bench).looks},
	{"memory", (*bench).memory},
}

type part struct {
	name string
	run  func(*bench)
}

func main() {
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: -run:", err)
		os.Exit(2)
	}
	if !slices.ContainsFunc(parts, func(p part) bool { return match.MatchString(p.name) }) {
		fmt.Fprintf(os.Stderr, "bench: -run: no part matches %q\n", *only)
		os.Exit(2)
	}
	os.Exit(lab.Run(func() int {
		if *base != "" {
			run(part{"against", (*bench).against})
			return 0
		}
		for _, part := range parts {
			if match.MatchString(part.name) {
				run(part)
			}
		}
		return 0
	}))
}

// run runs a part and cleans up after it, even if it is interrupted.
func run(p part) {
	b := &bench{}
	defer b.close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer close(signals)
	defer signal.Stop(signals)
	go func() {
		if s, interrupted := <-signals; interrupted {
			b.Fatalf("%v", s)
		}
	}()
	p.run(b)
}

// calls measures the CNI verbs.
func (b *bench) calls() {
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	sync := fdatasync(b, b.node.Dir)
	fmt.Printf("one fdatasync on this disk (%s): p50 %s, p99 %s; the goals are valid if p50 is at most 0.3 ms\n\n",
		fileSystem(b.node.Dir), ms(percentile(sync, 50)), ms(percentile(sync, 99)))
	fmt.Println("p50 of the duration of one call, in ms; alternating calls")

	ours, theirs := b.contender("leasehold", 0), b.contender("host-local", 0)
	b.size()
	b.versionCall(ours, theirs)
	for _, at := range []struct {
		leases, rounds int
		goal           float64
	}{{0, 300, 1.05}, {250, 300, 0.6}, {1000, 300, 0.3}, {10000, 60, 0.05}} {
		b.pairs(at.leases, b.rounds(at.rounds), at.goal)
	}
	b.freshPods()
	b.manyLeases()
	b.againstNothing(percentile(sync, 50))
	b.parallel(0, 1.2)
	b.parallel(1000, 0.5)
	b.print()
}

// size compares the sizes of the binaries.
func (b *bench) size() {
	size := func(name string) float64 {
		info, err := os.Stat(lab.Bin(name))
		b.check(err)
		return float64(info.Size()) / (1 << 20)
	}
	ours, theirs := size("leasehold"), size("host-local")
	b.add(row{what: "binary, MiB", ours: fmt.Sprintf("%.2f", ours), theirs: fmt.Sprintf("%.2f", theirs),
		ratio: ours / theirs, goal: "<= 4.5 MiB", met: ours <= 4.5})
}

func (b *bench) versionCall(ours, theirs *contender) {
	our, their := interleave(b.rounds(300), func() time.Duration { return ours.call("VERSION", "v") },
		func() time.Duration { return theirs.call("VERSION", "v") })
	b.compare("VERSION", our, their, 1)
}

// pairs measures ADD and DEL of one pod that is recreated repeatedly, on a node with a number of
// other leases.
func (b *bench) pairs(leases, rounds int, goal float64) {
	ours, theirs := b.contender("leasehold", leases), b.contender("host-local", leases)
	our, their := interleave(rounds, ours.pair, theirs.pair)
	b.compare(fmt.Sprintf("ADD+DEL at %d leases (%d pairs)", leases, rounds), our, their, goal)
}

// freshPods is like pairs, with another pod each time.
func (b *bench) freshPods() {
	ours, theirs := b.contender("leasehold", 0), b.contender("host-local", 0)
	pair := func(c *contender) func() time.Duration {
		return func() time.Duration {
			id := c.id()
			c.pod = "pod-" + id
			return c.call("ADD", id) + c.call("DEL", id)
		}
	}
	our, their := interleave(b.rounds(300), pair(ours), pair(theirs))
	b.compare("ADD+DEL, another pod each time", our, their, 0)
}

// manyLeases compares ADD in a store with 65,000 leases with ADD in an empty one.
func (b *bench) manyLeases() {
	full, empty := b.contender("leasehold", 65000), b.contender("leasehold", 0)
	one := func(c *contender) func() time.Duration {
		return func() time.Duration { id := c.id(); took := c.call("ADD", id); c.call("DEL", id); return took }
	}
	at65000, at0 := interleave(b.rounds(100), one(full), one(empty))
	ratio := percentile(at65000, 50) / percentile(at0, 50)
	b.add(row{what: "ADD at 65,000 leases, against ADD at 0", ours: ms(percentile(at65000, 50)),
		theirs: ms(percentile(at0, 50)) + " (ours)", ratio: ratio, goal: "<= 1.5", met: ratio <= 1.5})
}

// againstNothing compares ADD with the minimum for a durable one: a process and two fdatasync.
func (b *bench) againstNothing(sync float64) {
	c := b.contender("leasehold", 0)
	nothing := &contender{b: b, program: filepath.Join(lab.Root(), ".cache/empty")}
	add, start := interleave(b.rounds(300), func() time.Duration {
		id := c.id()
		took := c.call("ADD", id)
		c.call("DEL", id)
		return took
	}, func() time.Duration { return nothing.call("", "") })
	least := percentile(start, 50) + 2*sync
	ratio := percentile(add, 50) / least
	b.add(row{what: "ADD, against an empty Go program and two fdatasync", ours: ms(percentile(add, 50)),
		theirs: ms(least) + " (nothing)", ratio: ratio, goal: "<= 2", met: ratio <= 2})
}

// parallel measures bursts of 64 concurrent ADDs.
func (b *bench) parallel(leases int, goal float64) {
	ours, theirs := b.contender("leasehold", leases), b.contender("host-local", leases)
	var our, their, ourSteps, theirSteps []time.Duration
	for range b.rounds(10) {
		for _, side := range []struct {
			c            *contender
			times, steps *[]time.Duration
		}{{ours, &our, &ourSteps}, {theirs, &their, &theirSteps}} {
			burst := side.c.burst(64)
			*side.times, *side.steps = append(*side.times, burst...), append(*side.steps, widestStep(burst))
		}
	}
	what := fmt.Sprintf("64 parallel ADDs at %d leases, ", leases)
	for _, p := range []float64{50, 99} {
		o, t := percentile(our, p), percentile(their, p)
		r := row{what: fmt.Sprintf("%sp%.0f", what, p), ours: ms(o), theirs: ms(t), ratio: o / t}
		if p == 99 {
			r.goal, r.met = fmt.Sprintf("<= %.2f", goal), o/t <= goal
		}
		b.add(r)
	}
	o, t := percentile(ourSteps, 50), percentile(theirSteps, 50)
	b.add(row{what: what + "widest step", ours: ms(o), theirs: ms(t), ratio: o / t, goal: "< 50 ms",
		met: o < float64(50*time.Millisecond)})
}

// widestStep returns the longest time within a burst in which no call ended. A lock that is polled
// every 50 ms shows in its median over several bursts.
func widestStep(burst []time.Duration) (widest time.Duration) {
	slices.Sort(burst)
	for i := 1; i < len(burst); i++ {
		widest = max(widest, burst[i]-burst[i-1])
	}
	return widest
}

// A row is one line of the table.
type row struct {
	what, ours, theirs string
	ratio              float64
	goal               string
	met                bool
}

func (b *bench) add(r row) {
	fmt.Fprintf(os.Stderr, "  %s: %s against %s\n", r.what, r.ours, r.theirs)
	b.rows = append(b.rows, r)
}

func (b *bench) compare(what string, ours, theirs []time.Duration, goal float64) {
	o, t := percentile(ours, 50), percentile(theirs, 50)
	r := row{what: what, ours: ms(o), theirs: ms(t), ratio: o / t}
	if goal > 0 {
		r.goal, r.met = fmt.Sprintf("<= %.2f", goal), o/t <= goal
	}
	b.add(r)
}

func (b *bench) print() {
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, "\nMETRIC\tLEASEHOLD\tHOST-LOCAL\tRATIO\tGOAL\tMET")
	for _, r := range b.rows {
		ratio, met := "-", ""
		if r.ratio > 0 {
			ratio = fmt.Sprintf("%.2f", r.ratio)
		}
		if r.goal != "" {
			met = map[bool]string{true: "yes", false: "NO"}[r.met]
		}
		fmt.Fprintln(w, strings.Join([]string{r.what, r.ours, r.theirs, ratio, r.goal, met}, "\t"))
	}
	w.Flush()
}

func ms(d float64) string { return fmt.Sprintf("%.2f", d/float64(time.Millisecond)) }

// percentile returns a percentile of times, in nanoseconds.
func percentile(times []time.Duration, p float64) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return float64(sorted[min(len(sorted)-1, int(float64(len(sorted))*p/100))])
}
