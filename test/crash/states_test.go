package crash_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/leasehold-cni/leasehold/pkg/cniplugin"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// recording is a sequence of calls, the changes that they made to the disk, and their results.
type recording struct {
	*testNode
	rng        *rand.Rand
	steps      []step
	trace      recorder
	namespaces []*lab.Sandbox // see sandboxes

	tried, sampled int // the number of states, and of those that were also tried with the binary
}

// step is a call, and the number of changes in the trace when it had ended.
type step struct {
	verb    string
	sandbox *lab.Sandbox
	printed []string // ADD: the addresses of the result
	end     int
}

// TestCrashStates records every change that a sequence of ADDs and DELs makes to the disk, and
// boots the node in each state that a power cut may leave: any subset of the pages that were not
// synced, the last of them torn, and the names of a directory as they were at any time since it was
// synced.
func TestCrashStates(t *testing.T) {
	p := &recording{testNode: newTestNode(t, 8), rng: lab.Rand(t)}
	v4 := p.net.Main["ipam"].(lab.Conf)["ranges"].([][]lab.Conf)
	v6 := []lab.Conf{{"subnet": "fd00:5::/64", "rangeStart": "fd00:5::10", "rangeEnd": "fd00:5::17"}}
	p.net = p.as(lab.Conf{"ranges": append(v4, v6)}) // two sets, to detect incomplete results
	onTmpfs(t, p.node.StateDir(), 64<<20)
	onTmpfs(t, p.node.NetworksDir(), 64<<20)
	p.trace = recorder{
		dirs: []string{p.node.StateDir(), p.node.NetworksDir()}, names: map[string]int{}, sizes: map[int]int64{},
	}

	db := []lab.Pod{lab.NewPod("default", "db-0", "24h"), lab.NewPod("default", "db-1", "24h")}
	web := lab.NewPod("default", "web", "")
	first := p.step("ADD", p.node.Sandbox(db[0]))
	second := p.step("ADD", p.node.Sandbox(web))
	p.step("DEL", first)
	third := p.step("ADD", p.node.Sandbox(db[0].Recreated())) // returns
	p.step("ADD", p.node.Sandbox(db[1]))
	p.step("DEL", second)
	p.step("DEL", third)
	p.node.Clock += time.Hour // the cool-down of web expires
	for i := range howMany(1, 24) {
		sandbox := p.step("ADD", p.node.Sandbox([]lab.Pod{db[0], web}[i%2].Recreated()))
		p.step("DEL", sandbox)
	}

	syncs := 0
	for i, c := range p.trace.changes {
		if c.kind == "sync" {
			syncs++
		}
		if c.kind == "sync" && strings.Contains(c.path, "leases.db") || i == len(p.trace.changes)-1 {
			for _, d := range p.states(i) {
				p.boot(d, i, p.inside)
				if p.tried++; p.tried%howMany(100, 40) == 0 {
					p.sampled++
					p.boot(d, i, p.node.Call)
				}
				if t.Failed() {
					t.Log(d.restore(p.node.NetworksDir()), p.files())
					t.Fatalf("in state %d, power cut before change %d of %d: %.200q",
						p.tried, i, len(p.trace.changes), fmt.Sprint(c.kind, c.path))
				}
			}
		}
	}
	t.Logf("crash states: %d calls made %d changes and %d syncs; %d states tried, %d of them also with the binary",
		len(p.steps), len(p.trace.changes), syncs, p.tried, p.sampled)
}

// step makes a call with strace and records its changes.
func (p *recording) step(verb string, sandbox *lab.Sandbox) *lab.Sandbox {
	p.Helper()
	output := filepath.Join(p.TempDir(), "trace")
	call := sandbox.IPAMCall(p.net, verb)
	call.Wrap = straceArgs(output)
	reply := p.node.Call(call)
	if reply.Exit != 0 {
		p.Fatalf("%s of %s: %+v", verb, sandbox.Pod.Name, reply)
	}
	before := len(p.trace.changes)
	must.Succeed(p, p.trace.read(output, p.node.Clock), "strace")
	syncs := 0
	for _, c := range p.trace.changes[before:] {
		if c.kind == "sync" {
			syncs++
		}
	}
	// The first ADD creates the store. bbolt syncs the pages before the head page.
	want := map[string]int{"ADD": 2, "DEL": 0}[verb]
	if len(p.steps) > 0 && syncs != want || syncs < want {
		p.Errorf("%d syncs of %s of %s, want %d", syncs, verb, sandbox.Pod.Name, want)
	}
	p.steps = append(p.steps, step{verb, sandbox, reply.Addresses(), len(p.trace.changes)})
	if verb == "DEL" {
		sandbox.Remove()
	}
	return sandbox
}

// states returns the states that a power cut just before a change may leave.
func (p *recording) states(cut int) (all []disk) {
	durable := newDisk()
	var pages, names, mirror []change // changes that may be lost
	for i, c := range p.trace.changes[:cut] {
		inMirror := strings.HasPrefix(c.path, p.node.NetworksDir())
		switch {
		case c.kind == "sync" || c.kind == "printed":
		case (c.kind == "link" || c.kind == "unlink" || c.kind == "rename") && inMirror:
			mirror = append(mirror, c)
		case p.isDurable(c, p.trace.changes[i:cut]):
			durable.do(c, page)
		case c.kind == "page" || c.kind == "size":
			if p.isMirrorFile(c.file) {
				mirror = append(mirror, c)
			} else if c.kind == "size" || strings.Trim(c.data, "\x00") != "" ||
				durable.files[c.file].pages[c.at] != "" {
				pages = append(pages, c)
			}
		default:
			names = append(names, c)
		}
	}
	for n := range len(names) + 1 {
		base := durable.clone()
		for _, c := range names[:n] {
			base.do(c, page)
		}
		for _, d := range p.withSome(base, pages) {
			all = append(all, p.withMirror(d, mirror)...)
		}
	}
	return all
}

// isDurable reports whether a change was synced before the power cut. Syncing a directory makes its
// names durable, and the directory itself, as in every journalling file system.
func (p *recording) isDurable(c change, later []change) bool {
	return slices.ContainsFunc(later, func(s change) bool {
		if c.kind == "page" || c.kind == "size" {
			return s.kind == "sync" && s.file == c.file && s.file != 0
		}
		return s.kind == "sync" && (s.path == filepath.Dir(c.path) || s.path == filepath.Dir(c.to))
	})
}

// isMirrorFile reports whether a file is one of host-local's.
func (p *recording) isMirrorFile(file int) bool {
	return slices.ContainsFunc(p.trace.changes, func(c change) bool {
		return c.kind == "link" && c.file == file && strings.HasPrefix(c.path, p.node.NetworksDir())
	})
}

// withSome returns disks with subsets of the pages: all subsets, or a limited number of them if
// there are many; and those with all pages, of which the last is torn.
func (p *recording) withSome(base disk, pages []change) (all []disk) {
	bound := uint(howMany(4, 10))
	n := uint(len(pages))
	subsets := []uint64{}
	if n <= bound {
		for s := range uint64(1) << n {
			subsets = append(subsets, s)
		}
	} else {
		for i := range min(n, 64) + 1 { // each prefix, all without one, each page alone; and random subsets
			subsets = append(subsets, 1<<i-1, ^uint64(0)&^(1<<i), 1<<i)
		}
		for range 1 << bound {
			subsets = append(subsets, p.rng.Uint64())
		}
		subsets = append(subsets, ^uint64(0))
		if !long {
			p.rng.Shuffle(len(subsets)-1, func(i, j int) { subsets[i], subsets[j] = subsets[j], subsets[i] })
			subsets = subsets[len(subsets)-1-1<<bound:]
		}
	}
	for _, s := range subsets {
		d := base.clone()
		for i, c := range pages {
			if i >= 64 || s&(1<<i) != 0 {
				d.do(c, page)
			}
		}
		all = append(all, d)
	}
	if n > 0 {
		for _, torn := range []int{24, 80, 512, 2048, 3584} {
			d := base.clone()
			for _, c := range pages[:n-1] {
				d.do(c, page)
			}
			d.do(pages[n-1], torn)
			all = append(all, d)
		}
	}
	return all
}

// withMirror adds host-local's files, which are not synced: with all changes, without the newest
// contents, or in an older state.
func (p *recording) withMirror(base disk, mirror []change) (all []disk) {
	whole, empty, old := base.clone(), base.clone(), base.clone()
	for i, c := range mirror {
		whole.do(c, page)
		if c.kind != "page" || i < len(mirror)-2 {
			empty.do(c, page)
		}
		if i < len(mirror)-8 {
			old.do(c, page)
		}
	}
	all = []disk{whole}
	if p.rng.IntN(howMany(8, 4)) == 0 {
		all = append(all, empty, old)
	}
	return all
}

// boot boots the node with the disk and checks that every printed result is in the store.
func (p *recording) boot(d disk, cut int, call func(lab.Call) lab.Reply) {
	p.Helper()
	must.Succeed(p, d.restore(p.node.StateDir(), p.node.NetworksDir()))
	p.node.Reboot()

	originals := map[string][]string{} // the last printed addresses of pods with a window
	for _, a := range p.steps {
		name, window := a.sandbox.Pod.Name, a.sandbox.Pod.Annotations != nil
		if a.verb == "ADD" && window && p.wasPrinted(a, cut) {
			originals[name] = a.printed
		}
	}
	p.owner = map[string]*lab.Sandbox{}
	add := func(sandbox *lab.Sandbox) lab.Reply {
		return p.track(sandbox, "ADD", func() lab.Reply { return call(sandbox.IPAMCall(p.net, "ADD")) })
	}
	for i, sandbox := range p.sandboxes() {
		reply := add(sandbox)
		if original := originals[sandbox.Pod.Name]; original != nil && !slices.Equal(original, reply.Addresses()) {
			p.Errorf("%s had %v, and gets %+v", sandbox.Pod.Name, original, reply) // I2, I4
		}
		if i < 3 && (reply.Exit != 0 || len(reply.Addresses()) != 2) {
			p.Errorf("ADD of %s after the power cut: %+v", sandbox.Pod.Name, reply)
		}
		if i == 0 {
			p.checkComplete()
		}
	}
	p.checkComplete()
	if len(p.owner) != 2*len(p.pool) {
		p.Errorf("only %d of %d addresses can be assigned\n%s", len(p.owner), 2*len(p.pool), p.list("--all")) // I3
	}
}

// sandboxes returns one sandbox for each address: of a new pod, of the two pods with a window, and
// of other pods. They share network namespaces with those of earlier calls, because creating one
// takes longer than a boot.
func (p *recording) sandboxes() []*lab.Sandbox {
	if p.namespaces == nil {
		for i := range p.pool {
			pod := lab.NewPod("default", fmt.Sprint("filler-", i), "")
			if i == 1 || i == 2 {
				pod = lab.NewPod("default", fmt.Sprint("db-", i-1), "10")
			}
			p.namespaces = append(p.namespaces, p.node.Sandbox(pod))
		}
	}
	sandboxes := make([]*lab.Sandbox, len(p.namespaces))
	for i, namespace := range p.namespaces {
		sandbox := *namespace
		sandbox.ID = fmt.Sprintf("%032x%032x", p.rng.Uint64(), i)
		sandboxes[i] = &sandbox
	}
	return sandboxes
}

// wasPrinted reports whether the result of a call was printed before the power cut.
func (p *recording) wasPrinted(a step, cut int) bool {
	for i, c := range p.trace.changes[:min(cut, a.end)] {
		if c.kind == "printed" && i >= p.begin(a) {
			return true
		}
	}
	return false
}

func (p *recording) begin(a step) int {
	begin := 0
	for _, other := range p.steps {
		if other.end < a.end {
			begin = other.end
		}
	}
	return begin
}

// checkComplete checks the store in this process: tx.Check finds no problems, and every container
// has an address of both sets (I5).
func (p *recording) checkComplete() {
	p.Helper()
	err := p.store().View(context.Background(), func(tx *store.Tx) error {
		for _, found := range tx.Check() {
			p.Errorf("check: %s", found)
		}
		has := map[string]int{}
		for _, pool := range tx.Pools() {
			for _, l := range tx.InPool(pool) {
				has[l.Holder.ContainerID]++
			}
		}
		for id, n := range has {
			if id != "" && n != 2 {
				p.Errorf("container %.12s has %d addresses of 2", id, n)
			}
		}
		return nil
	})
	if err != nil {
		p.Errorf("reading the store failed: %v", err)
	}
}

func (c *testNode) store() *store.Store {
	return store.New(store.Dirs{State: c.node.StateDir(), Run: c.node.RunDir()})
}

// inside makes a call in this process, which is faster than starting the binary.
func (c *testNode) inside(call lab.Call) lab.Reply {
	host, clock, err := host.FromEnv(func(name string) string {
		return map[string]string{
			"LEASEHOLD_BOOT_ID_FILE": filepath.Join(c.node.Dir, "boot_id"),
			"LEASEHOLD_CLOCK_OFFSET": c.node.Clock.String(),
		}[name]
	})
	must.Succeed(c, err)
	var stdout, stderr bytes.Buffer
	plugin := cniplugin.Plugin{
		Service: &ipam.Service{Node: &operation.Node{
			Store: c.store(), Host: host, Plugin: true, Clock: clock,
			Warn: func(text string) { fmt.Fprintln(&stderr, text) },
		}},
		Stdout: &stdout, Stderr: &stderr,
	}
	verb := map[string]func(*skel.CmdArgs) error{"ADD": plugin.Add, "DEL": plugin.Del, "CHECK": plugin.Check}[call.Verb]
	done := make(chan error, 1)
	go func() {
		done <- verb(&skel.CmdArgs{
			ContainerID: call.ContainerID, Netns: call.NetNS, IfName: call.IfName, Args: call.Args,
			StdinData: []byte(call.Stdin),
		})
	}()
	var reply lab.Reply
	select {
	case err = <-done:
	case <-time.After(time.Minute):
		c.Fatalf("%s hangs", call.Verb)
	}
	if err != nil {
		reply.Exit = 1
		errors.As(err, &reply.Err)
	}
	reply.Stdout, reply.Stderr = stdout.String(), stderr.String()
	return reply
}
