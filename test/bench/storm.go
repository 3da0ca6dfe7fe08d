package main

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

const (
	stormPods    = 250
	stormWorkers = 16
)

// storm measures 250 ADDs and then 250 DELs, as after a node's boot and in its drain, on disks on
// which a sync takes 0, 1, 5 and 20 ms longer: pods with a window and without, against host-local
// under the same delay. Then it measures one ADD and DEL at a time with 5 ms.
func (b *bench) storm() {
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	fmt.Printf("\n%d ADDs, then %d DELs, %d at a time, while each sync is delayed; times in ms\n\n",
		b.rounds(stormPods), b.rounds(stormPods), stormWorkers)
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	fmt.Fprintln(w, "DELAY\tONE FDATASYNC\tPODS\tVERB\tPLUGIN\tTOTAL\tP50\tP99\tSYNCS")
	delays := []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}
	if *quick {
		delays = delays[2:3]
	}
	for _, delay := range delays {
		disk := lab.NewSlowDisk(b, delay)
		var one []time.Duration
		disk.Do(func() { one = fdatasync(b, b.node.Dir) })
		for _, pods := range []string{"plain", "retained"} {
			b.storms(w, disk, delay, percentile(one, 50), pods)
		}
		w.Flush()
		if delay == 5*time.Millisecond {
			b.slowPair(disk, percentile(one, 50), 0)
			b.slowPair(disk, percentile(one, 50), 30)
		}
	}
}

// storms runs the storm with both plugins.
func (b *bench) storms(w *tabwriter.Writer, disk *lab.SlowDisk, delay time.Duration, sync float64, pods string) {
	totals := map[string][]float64{} // by verb: leasehold's and host-local's
	for _, name := range []string{"leasehold", "host-local"} {
		c := b.contender(name, 0)
		if pods == "plain" {
			c.stdin = withoutWindow(c.stdin)
		}
		ids := make([]string, b.rounds(stormPods))
		for i := range ids {
			ids[i] = c.id()
		}
		disk.Run(c.command("VERSION", ids[0], "")) // reads the program from the disk
		for _, verb := range []string{"ADD", "DEL"} {
			before := disk.Syncs()
			total, times := c.concurrently(disk, verb, ids)
			totals[verb] = append(totals[verb], total)
			fmt.Fprintf(w, "%v\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", delay, ms(sync), pods, verb, name, ms(total),
				ms(percentile(times, 50)), ms(percentile(times, 99)), disk.Syncs()-before)
		}
	}
	for _, verb := range []string{"ADD", "DEL"} {
		f := figure{Figure: fmt.Sprintf("%d %ss of %s pods, fdatasync %s ms, in total", b.rounds(stormPods), verb, pods,
			ms(sync)), Unit: "ms", Leasehold: inMS(totals[verb][0]), Other: inMS(totals[verb][1])}
		if delay == 0 && verb == "DEL" {
			f = f.atMost(0.3)
		}
		b.add(f)
	}
}

// concurrently calls the verb for each container, and returns the duration of all and of each call.
func (c *contender) concurrently(disk *lab.SlowDisk, verb string, ids []string) (total float64, times []time.Duration) {
	var mu sync.Mutex
	var wait sync.WaitGroup
	next := make(chan int)
	began := time.Now()
	for range stormWorkers {
		wait.Go(func() {
			for i := range next {
				cmd := c.command(verb, ids[i], fmt.Sprint("storm-", i))
				took, err := disk.Run(cmd)
				c.failed(cmd, err)
				mu.Lock()
				times = append(times, took)
				mu.Unlock()
			}
		})
	}
	for i := range ids {
		next <- i
	}
	close(next)
	wait.Wait()
	return float64(time.Since(began)), times
}

// slowPair compares ADD and DEL of one pod, on a node with a number of other leases, with the time
// of host-local and two syncs.
func (b *bench) slowPair(disk *lab.SlowDisk, sync float64, leases int) {
	ours, theirs := b.contender("leasehold", leases), b.contender("host-local", leases)
	run := func(c *contender, cmd *exec.Cmd) time.Duration {
		took, err := disk.Run(cmd)
		c.failed(cmd, err)
		return took
	}
	syncs := map[string]int{}
	pair := func(c *contender) (took time.Duration) {
		id := c.id()
		for _, verb := range []string{"ADD", "DEL"} {
			before := disk.Syncs()
			took += run(c, c.command(verb, id, c.pod))
			if c == ours {
				syncs[verb] = disk.Syncs() - before
			}
		}
		return took
	}
	our, their := interleave(b.rounds(100), func() time.Duration { return pair(ours) },
		func() time.Duration { return pair(theirs) + time.Duration(2*sync) })
	f := compare(fmt.Sprintf("ADD+DEL at %d leases, fdatasync %s ms", leases, ms(sync)), our, their)
	f.Against = "host-local and 2 fdatasync"
	b.add(f.atMost(1))
	if leases > 0 {
		return
	}
	b.add(figure{Figure: "syncs of an ADD", Leasehold: float64(syncs["ADD"])}.below(2))
	b.add(figure{Figure: "syncs of a DEL", Leasehold: float64(syncs["DEL"])}.below(0))
}
