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
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
)

var (
	quick = flag.Bool("quick", false, "run a tenth of the rounds, and not those that take long")
	only  = flag.String("run", "", "run only the parts that match the regular `expression`")
)

// parts are the independent parts of the benchmark.
var parts = []part{
	{"calls", (*bench).calls},
	{"storm", (*bench).storm},
	{"idle", (*bench).idle},
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
		printTable()
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
	fmt.Printf("one fdatasync on this disk (%s): p50 %s ms, p99 %s ms; the goals are valid if p50 is at "+
		"most 0.3 ms\n", fileSystem(b.node.Dir), ms(percentile(sync, 50)), ms(percentile(sync, 99)))

	ours, theirs := b.contender("leasehold", 0), b.contender("host-local", 0)
	b.size()
	b.versionCall(ours, theirs)
	for _, at := range []struct {
		leases, rounds int
		goal           float64
	}{{0, 300, 0.95}, {30, 300, 0.9}, {110, 300, 0.75}, {250, 300, 0.5}, {1000, 300, 0.2}, {10000, 60, 0.03}} {
		if at.leases < 10000 || !*quick {
			b.pairs(at.leases, b.rounds(at.rounds), at.goal)
		}
	}
	if !*quick {
		b.manyLeases()
	}
	b.fullPool()
	b.againstNothing(percentile(sync, 50))
	b.parallel(0, 1)
	b.parallel(1000, 0.3)
}

// size compares the sizes of the binaries.
func (b *bench) size() {
	size := func(name string) float64 {
		info, err := os.Stat(lab.Bin(name))
		b.check(err)
		return float64(info.Size()) / (1 << 20)
	}
	b.add(figure{Figure: "binary", Unit: "MiB", Leasehold: size("leasehold"), Other: size("host-local")}.below(4.5))
}

func (b *bench) versionCall(ours, theirs *contender) {
	our, their := interleave(b.rounds(300), func() time.Duration { return ours.call("VERSION", "v") },
		func() time.Duration { return theirs.call("VERSION", "v") })
	b.add(compare("VERSION", our, their).atMost(1))
}

// pairs measures ADD and DEL of one pod that is recreated repeatedly, on a node with a number of
// other leases.
func (b *bench) pairs(leases, rounds int, goal float64) {
	ours, theirs := b.contender("leasehold", leases), b.contender("host-local", leases)
	var ourDels, theirDels []time.Duration
	pair := func(c *contender, dels *[]time.Duration) func() time.Duration {
		return func() time.Duration {
			id := c.id()
			add, del := c.call("ADD", id), c.call("DEL", id)
			*dels = append(*dels, del)
			return add + del
		}
	}
	our, their := interleave(rounds, pair(ours, &ourDels), pair(theirs, &theirDels))
	b.add(compare(fmt.Sprintf("ADD+DEL at %d leases (%d pairs)", leases, rounds), our, their).atMost(goal))
	dels := compare(fmt.Sprintf("DEL at %d leases", leases), ourDels, theirDels)
	if leases == 0 {
		dels = dels.atMost(0.6)
	}
	b.add(dels)
}

// manyLeases compares ADD in a store with 65,000 leases with ADD in an empty one.
func (b *bench) manyLeases() {
	full, empty := b.contender("leasehold", 65000), b.contender("leasehold", 0)
	at65000, at0 := interleave(b.rounds(100), full.add, empty.add)
	f := compare("ADD at 65,000 leases", at65000, at0)
	f.Against = "leasehold at 0"
	b.add(f.atMost(1.5))
}

// fullPool measures ADDs that are refused because all holders of a full pool live. The first one,
// and then one every 5 s, examines all holders.
func (b *bench) fullPool() {
	c := b.contenderIn(fullSubnet, "leasehold", 8189)
	var scans, refused []time.Duration
	for range b.rounds(5) {
		scans = append(scans, c.refused())
		for range 9 {
			refused = append(refused, c.refused())
		}
		time.Sleep(5 * time.Second) // choose.go, lookEvery
	}
	b.add(figure{Figure: "ADD refused in a full pool of 8,189", Unit: "ms",
		Leasehold: inMS(percentile(refused, 50))}.below(20))
	b.add(figure{Figure: "the same when it examines the holders", Unit: "ms",
		Leasehold: inMS(percentile(scans, 50))})
}

// refused returns the duration of an ADD that must fail.
func (c *contender) refused() time.Duration {
	cmd := c.command("ADD", c.id(), "new")
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	if err == nil {
		c.b.Fatalf("an ADD in a full pool succeeded: %s", cmd.Stdout)
	}
	return took
}

// add returns the duration of an ADD, and performs the DEL.
func (c *contender) add() time.Duration {
	id := c.id()
	took := c.call("ADD", id)
	c.call("DEL", id)
	return took
}

// againstNothing compares ADD with the minimum for a durable one: a process and two fdatasync.
func (b *bench) againstNothing(sync float64) {
	c := b.contender("leasehold", 0)
	nothing := &contender{b: b, program: b.copied(filepath.Join(lab.Root(), ".cache/empty"))}
	add, start := interleave(b.rounds(300), c.add, func() time.Duration {
		return nothing.call("", "") + 2*time.Duration(sync)
	})
	f := compare("ADD", add, start)
	f.Against = "empty Go program and 2 fdatasync"
	b.add(f.atMost(1.8))
}

// parallel measures bursts of 64 concurrent ADDs.
func (b *bench) parallel(leases int, goal float64) {
	ours, theirs := b.contender("leasehold", leases), b.contender("host-local", leases)
	ours.add()
	theirs.add()
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
	at := func(name string, our, their []time.Duration, p float64) figure {
		return figure{Figure: what + name, Unit: "ms", Leasehold: inMS(percentile(our, p)),
			Other: inMS(percentile(their, p))}
	}
	b.add(at("p50", our, their, 50))
	b.add(at("p99", our, their, 99).atMost(goal))
	b.add(at("widest step", ourSteps, theirSteps, 50).below(50))
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

func ms(d float64) string { return fmt.Sprintf("%.2f", d/float64(time.Millisecond)) }

// percentile returns a percentile of times, in nanoseconds.
func percentile(times []time.Duration, p float64) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return float64(sorted[min(len(sorted)-1, int(float64(len(sorted))*p/100))])
}
