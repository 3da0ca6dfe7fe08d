package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// A step is a call that does what another one does, and more. The difference is what that costs.
type step struct {
	name string
	than int // the index of the other one; -1 for none
	cmd  func() *exec.Cmd
	undo func() // may be nil

	took, cpu, faults, switches []time.Duration // the latter two are numbers
	calls, threads, syncs       int
}

// time measures where the time of a call goes, by steps that do a little more each. Nothing traces
// the calls while they are timed.
func (b *bench) time() {
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	sync := fdatasync(b, b.node.Dir)
	steps := b.steps()
	for round := range b.rounds(300) + 1 {
		for i := range steps {
			steps[(i+round)%len(steps)].time(b, round > 0)
		}
	}
	for i := range steps {
		steps[i].trace(b)
	}

	var out strings.Builder
	fmt.Fprintf(&out, "%d rounds of all steps in turn: the 10th percentiles of times, because the machine may be "+
		"shared, and the medians of numbers. One fdatasync takes %s ms; %d processors, load average %.1f; %s.\n\n",
		b.rounds(300), ms(percentile(sync, 10)), runtime.NumCPU(), loadAverage(), runtime.Version())
	fmt.Fprint(&out, "| | step | ms | more than | by, ms | processor, ms | page faults | switches | system calls | "+
		"threads | syncs |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i, s := range steps {
		than, by := "", ""
		if s.than >= 0 {
			than = strconv.Itoa(s.than + 1)
			by = ms(percentile(s.took, 10) - percentile(steps[s.than].took, 10))
		}
		fmt.Fprintf(&out, "| %d | %s | %s | %s | %s | %s | %.0f | %.0f | %d | %d | %d |\n", i+1, s.name,
			ms(percentile(s.took, 10)), than, by, ms(percentile(s.cpu, 10)), percentile(s.faults, 50),
			percentile(s.switches, 50), s.calls, s.threads, s.syncs)
	}
	fmt.Print("\n", out.String())
}

// steps returns the steps. Those of one plugin share its files; the returning pod has its own.
func (b *bench) steps() []step {
	plain := func(name, dir string) *contender {
		c := b.contenderIn(name, dir, 0)
		c.stdin = withoutWindow(c.stdin)
		c.call("ADD", "present")
		return c
	}
	ours, theirs := plain("leasehold", b.node.Dir), plain("host-local", b.node.Dir)
	still := plain("leasehold", b.node.Dir) // no DEL that the next ADD would replay
	memory := plain("leasehold", "/run/lab")
	retained := b.contender("leasehold", 0)
	retained.add()
	call := func(c *contender, verb, id string) func() *exec.Cmd {
		return func() *exec.Cmd { return c.command(verb, id, c.pod) }
	}
	add := func(c *contender) (func() *exec.Cmd, func()) {
		fresh := c != retained
		return func() *exec.Cmd {
				id := c.id()
				if fresh {
					c.pod = "pod-" + id
				}
				return c.command("ADD", id, c.pod)
			}, func() {
				c.call("DEL", fmt.Sprintf("%064x", c.calls))
			}
	}
	del := func(c *contender) func() *exec.Cmd {
		return func() *exec.Cmd {
			id := c.id()
			if c != retained {
				c.pod = "pod-" + id
			}
			c.call("ADD", id)
			return c.command("DEL", id, c.pod)
		}
	}
	program := func(name string) func() *exec.Cmd {
		return call(&contender{b: b, program: b.copied(filepath.Join(lab.Root(), ".cache", name))}, "", "")
	}
	addOurs, delOurs := add(ours)
	addMemory, delMemory := add(memory)
	addRetained, delRetained := add(retained)
	addTheirs, delTheirs := add(theirs)
	return []step{
		{name: "empty Go program", than: -1, cmd: program("empty")},
		{name: "program with the plugin's packages that does nothing", than: 0, cmd: program("linked")},
		{name: "VERSION: reads and decodes stdin, prints", than: 1, cmd: call(ours, "VERSION", "v")},
		{name: "CHECK: decodes the configuration, locks, opens, reads", than: 2, cmd: call(still, "CHECK", "present")},
		{name: "ADD repeated: host-local's lock, its file, decides; writes nothing", than: 3,
			cmd: call(still, "ADD", "present")},
		{name: "ADD of a new pod, all files in memory: writes store and host-local's file", than: 4, cmd: addMemory,
			undo: delMemory},
		{name: "ADD of a new pod: waits for the disk", than: 5, cmd: addOurs, undo: delOurs},
		{name: "ADD of a retained pod that returns: asks its namespace, leaves a note for the agent", than: 6,
			cmd: addRetained, undo: delRetained},
		{name: "DEL, all files in memory", than: 2, cmd: del(memory)},
		{name: "DEL", than: 8, cmd: del(ours)},
		{name: "DEL of a retained pod", than: 9, cmd: del(retained)},
		{name: "host-local: VERSION", than: 0, cmd: call(theirs, "VERSION", "v")},
		{name: "host-local: CHECK", than: 11, cmd: call(theirs, "CHECK", "present")},
		{name: "host-local: ADD", than: 11, cmd: addTheirs, undo: delTheirs},
		{name: "host-local: DEL", than: 11, cmd: del(theirs)},
	}
}

// time runs the step once.
func (s *step) time(b *bench, count bool) {
	cmd := s.cmd()
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	(&contender{b: b, program: s.name}).failed(cmd, err)
	if s.undo != nil {
		s.undo()
	}
	if !count {
		return
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	s.took = append(s.took, took)
	s.cpu = append(s.cpu, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	s.faults = append(s.faults, time.Duration(usage.Minflt))
	s.switches = append(s.switches, time.Duration(usage.Nvcsw+usage.Nivcsw))
}

// trace counts the step's system calls. How many there are of the Go scheduler's differs from call
// to call, so it takes the fewest of five calls.
func (s *step) trace(b *bench) {
	for i := range 5 {
		cmd := s.cmd()
		file := filepath.Join(b.node.Dir, "strace")
		cmd.Args = append([]string{"strace", "-f", "-qq", "-o", file}, cmd.Path)
		path, err := exec.LookPath("strace")
		b.check(err)
		cmd.Path = path
		(&contender{b: b, program: s.name}).failed(cmd, cmd.Run())
		if s.undo != nil {
			s.undo()
		}
		out, err := os.ReadFile(file)
		b.check(err)
		calls, threads, syncs := 0, 1, 0
		for line := range strings.Lines(string(out)) {
			m := systemCall.FindStringSubmatch(line)
			if m == nil {
				continue // the end of a call, or a signal
			}
			calls++
			switch {
			case strings.HasPrefix(m[1], "clone"):
				threads++
			case slices.Contains([]string{"fsync", "fdatasync", "sync", "syncfs", "sync_file_range"}, m[1]):
				syncs++
			}
		}
		if i == 0 || calls < s.calls {
			s.calls, s.threads, s.syncs = calls, threads, syncs
		}
	}
}

var systemCall = regexp.MustCompile(`^[0-9]+ +([a-z0-9_]+)\(`)
