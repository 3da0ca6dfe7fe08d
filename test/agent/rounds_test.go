package agent_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestRounds runs an agent a hundred times on a machine on which pods start, move and vanish. The
// agent is started in different views, including ones in which it does not see the machine. No
// living pod may lose its address. If the agent sees the machine, the leases of all vanished pods
// must be released.
func TestRounds(t *testing.T) {
	c := newPods(t)
	for round := range 100 {
		v := views[c.Intn(len(views))]
		c.history = append(c.history, fmt.Sprintf("round %d, an agent %s", round, v.name))
		var early *daemon
		if !v.noView && c.Intn(3) == 0 {
			early = begin(t, c.node, v) // it runs during the actions
		}
		for range 1 + c.Intn(6) {
			c.act()
		}
		if early != nil {
			early.end()
		}
		if v.noView {
			c.roundWithoutView(v)
		} else {
			c.round(v)
		}
		if t.Failed() {
			t.Fatal(strings.Join(c.history[max(0, len(c.history)-40):], "\n"))
		}
	}
	t.Logf("%d pods lived, %d vanished and were released; %v", c.made, c.vanished, c.counts)
}

// pods is the pods of one machine, and their expected state.
type pods struct {
	t        *testing.T
	rand     *rand.Rand
	node     *lab.Node
	net      *lab.Network
	living   []*instance
	dead     []*instance // vanished, and not known to be released
	gone     []lab.Pod
	history  []string
	made     int
	vanished int
	counts   map[string]int
}

// An instance is one sandbox of a pod.
type instance struct {
	*lab.Sandbox
	addr    string
	how     string
	process bool   // a process is in the namespace
	first   string // original path of the namespace
	mounted string // current path of its mount, "" if it is not mounted
}

func newPods(t *testing.T) *pods {
	node := lab.NewNode(t)
	c := &pods{t: t, rand: lab.Rand(t), node: node, counts: map[string]int{}}
	c.net = node.Network("net", "1.0.0", node.Bridge(node.IPAM("10.1.0.0/22")))
	t.Cleanup(node.Check)
	c.start("mounted") // stays, so that there is always a living pod
	return c
}

func (c *pods) Intn(n int) int { return c.rand.IntN(n) }

func (c *pods) say(format string, args ...any) {
	c.history = append(c.history, "  "+fmt.Sprintf(format, args...))
}

// kinds are the ways in which a namespace is kept, and in which the runtime refers to it.
var kinds = []string{"mounted", "mounted, with a process", "in another directory", "behind a link",
	"only by a process", "address elsewhere"}

// act performs one random action.
func (c *pods) act() {
	others := c.living[1:]
	if len(others) < 4 {
		c.start(kinds[c.Intn(len(kinds))])
		return
	}
	i := 1 + c.Intn(len(others))
	switch what := c.Intn(10); {
	case what < 3 && len(c.living) < 30:
		c.start(kinds[c.Intn(len(kinds))])
	case what < 5:
		c.vanish(i)
	case what == 5:
		c.stop(i)
	case what == 6:
		c.weaken(c.living[i])
	case what == 7:
		c.move(c.living[i])
	case what == 8:
		c.node.Clock += time.Duration(c.Intn(240)) * time.Second
		c.say("the clock is %v ahead", c.node.Clock)
	default:
		c.recreate()
	}
}

func (c *pods) start(how string) {
	window := []string{"", "1", "10", "24h"}[c.Intn(4)]
	c.made++
	c.startPod(lab.NewPod("ns", fmt.Sprintf("pod-%d", c.made), window), how)
}

// recreate recreates a pod that has vanished or was stopped.
func (c *pods) recreate() {
	if len(c.gone) == 0 {
		return
	}
	old := c.gone[c.Intn(len(c.gone))]
	if slices.ContainsFunc(c.living, func(l *instance) bool { return l.Pod.Name == old.Name }) {
		return
	}
	pod := lab.NewPod(old.Namespace, old.Name, "10")
	c.startPod(pod, kinds[c.Intn(len(kinds))])
}

func (c *pods) startPod(pod lab.Pod, how string) {
	l := &instance{Sandbox: c.node.Sandbox(pod), how: how}
	l.first, l.mounted = l.NetNS, l.NetNS
	switch how {
	case "mounted, with a process":
		l.Start("sleep", "600")
		l.process = true
	case "in another directory":
		l.NetNS = c.remount(l, filepath.Join(c.node.Dir, "odd place", l.ID[:12]))
	case "behind a link": // as /var/run/netns is, where /var/run leads to /run
		link := filepath.Join(c.node.Dir, "run")
		os.Symlink("/run/netns", link)
		l.NetNS = filepath.Join(link, filepath.Base(l.NetNS))
	case "only by a process":
		p := l.Start("sleep", "600")
		l.process = true
		l.Unmount()
		l.mounted = ""
		l.NetNS = fmt.Sprintf("/proc/%d/ns/net", p.Pid)
	}
	if how == "address elsewhere" { // as with gVisor: the address is in no namespace
		reply := l.Call(c.net, "ADD")
		if reply.Exit != 0 {
			c.t.Fatalf("ADD %s: %s %s", pod.Name, reply.Stdout, reply.Stderr)
		}
		l.addr = reply.Addresses()[0]
	} else {
		addrs, err := l.Add(c.net)
		must.Succeed(c.t, err, "ADD", pod.Name, strings.Join(c.history, "\n"))
		l.addr = addrs[0]
	}
	c.counts[how]++
	c.living = append(c.living, l)
	// A lease that was taken over is no longer expected to be released.
	c.dead = slices.DeleteFunc(c.dead, func(d *instance) bool { return d.addr == l.addr })
	c.say("%s starts, %s, at %s, netns %s, container %s", pod.Name, how, l.addr, l.NetNS, l.ID[:12])
}

// remount mounts the namespace at another path, and unmounts it from the old one.
func (c *pods) remount(l *instance, to string) string {
	must.Succeed(c.t, os.MkdirAll(filepath.Dir(to), 0o755))
	must.Succeed(c.t, os.WriteFile(to, nil, 0o444))
	must.Succeed(c.t, unix.Mount(l.mounted, to, "", unix.MS_BIND, ""), "mount", l.mounted, "at", to)
	c.t.Cleanup(func() { unix.Unmount(to, unix.MNT_DETACH) })
	c.unmount(l)
	l.mounted = to
	return to
}

func (c *pods) unmount(l *instance) {
	if l.mounted != "" {
		unix.Unmount(l.mounted, unix.MNT_DETACH)
		os.Remove(l.mounted)
		l.mounted = ""
	}
}

// vanish removes a sandbox without a DEL.
func (c *pods) vanish(i int) {
	l := c.take(i)
	c.unmount(l)
	l.Remove()
	c.vanished++
	c.dead = append(c.dead, l)
	c.say("%s vanishes, container %s", l.Pod.Name, l.ID[:12])
}

// stop removes a sandbox with a DEL.
func (c *pods) stop(i int) {
	l := c.take(i)
	var err error
	if l.how == "address elsewhere" {
		if reply := l.Call(c.net, "DEL"); reply.Exit != 0 {
			err = fmt.Errorf("%s", reply.Stdout)
		}
	} else {
		err = l.Del(c.net)
	}
	must.Succeed(c.t, err, "DEL", l.Pod.Name)
	c.unmount(l)
	l.Remove()
	c.say("%s is stopped", l.Pod.Name)
}

func (c *pods) take(i int) *instance {
	l := c.living[i]
	c.living = slices.Delete(c.living, i, i+1)
	c.gone = append(c.gone, l.Pod)
	return l
}

// weaken unmounts a namespace that is also kept by a process, or starts a process in one that is
// only mounted.
func (c *pods) weaken(l *instance) {
	if l.mounted == "" {
		return
	}
	if !l.process {
		if l.mounted != l.first {
			return // a process cannot be started in it
		}
		l.Start("sleep", "600")
		l.process = true
		c.say("a process starts in %s", l.Pod.Name)
		return
	}
	c.unmount(l)
	c.say("%s is not mounted any more", l.Pod.Name)
}

// move mounts a namespace at another path than that of the lease.
func (c *pods) move(l *instance) {
	if l.mounted == "" {
		return
	}
	c.remount(l, filepath.Join("/run/moved", l.ID[:12]+"-"+strconv.Itoa(c.Intn(1e6))))
	c.say("%s is moved to %s", l.Pod.Name, l.mounted)
}

// untouched checks that every living pod still has its lease.
func (c *pods) untouched() {
	c.t.Helper()
	leases := c.node.LeasesByAddress("--all")
	for _, l := range c.living {
		if got := leases[l.addr]; got.State != "Bound" || got.Container != l.ID {
			c.t.Errorf("%s lives (%s) and its address %s is %s, for container %.12s",
				l.Pod.Name, l.how, l.addr, cmp.Or(got.State, "free"), got.Container)
		}
	}
}

// round runs an agent that sees the machine, which must release the leases of vanished pods.
func (c *pods) round(v view) {
	c.t.Helper()
	if c.Intn(4) == 0 {
		c.history = append(c.history, "leasectl gc instead")
		_, err := c.node.Leasectl("gc")
		must.Succeed(c.t, err)
	} else {
		d := begin(c.t, c.node, v)
		d.says(`msg="node surveyed"`)
		background.Eventually(c.t, func() string { return c.unreleased(d) })
		d.end()
	}
	check.Equal(c.t, c.unreleased(nil), "")
	c.dead = nil
	c.untouched()
}

func (c *pods) unreleased(d *daemon) string {
	bound := map[string]bool{}
	for _, l := range c.node.Leases() {
		if l.State == "Bound" {
			bound[l.Container] = true
		}
	}
	for _, l := range c.dead {
		if bound[l.ID] {
			text := fmt.Sprintf("%s has vanished (%s) and still has %s", l.Pod.Name, l.how, l.addr)
			if d != nil {
				text += ":\n" + d.out.String()
			}
			return text
		}
	}
	return ""
}

// roundWithoutView runs an agent that does not see the machine, which must change nothing and log
// that.
func (c *pods) roundWithoutView(v view) {
	c.t.Helper()
	list := func() []lab.Lease {
		leases := c.node.Leases("--all")
		for i := range leases {
			leases[i].Until = nil // computed from two clocks, with some jitter
		}
		return leases
	}
	before := list()
	d := begin(c.t, c.node, v)
	d.says("the host cannot be seen from here, so nothing is done")
	d.end()
	check.NoDiff(c.t, gocmp.Diff(before, list()), "before and after an agent", v.name)
	c.untouched()
}
