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
	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/lab"
)

// A play is a sequence of real calls, every change that they made to the disk, and what their callers were told.
type play struct {
	*crowd
	dice  *rand.Rand
	acts  []act
	trace recorder
	rooms []*lab.Sandbox // see boxes

	tried, sampled int // states, and those of them that the binary met too
}

// An act is one call, and the place in the trace where it was over.
type act struct {
	verb string
	box  *lab.Sandbox
	told []string // ADD: the addresses of its result
	end  int
}

// TestCrashStates records every change that a run of ADDs and DELs makes to the disk, and cuts the power wherever it can be
// cut. What a file system may leave then: of what was not synced, any of the pages, the last of them torn; and the names in
// a directory as they were at some moment since it was synced. In each such state a node boots.
func TestCrashStates(t *testing.T) {
	p := &play{crowd: newCrowd(t, 8, nil), dice: dice(t)}
	v4 := p.net.Main["ipam"].(lab.Conf)["ranges"].([][]lab.Conf)
	v6 := []lab.Conf{{"subnet": "fd00:5::/64", "rangeStart": "fd00:5::10", "rangeEnd": "fd00:5::17"}}
	p.net = p.as(lab.Conf{"ranges": append(v4, v6)}) // two sets, so that half a result would be seen
	onTmpfs(t, p.node.StateDir(), 64<<20)
	onTmpfs(t, p.node.NetworksDir(), 64<<20)
	p.trace = recorder{dirs: []string{p.node.StateDir(), p.node.NetworksDir()}, names: map[string]int{}, sizes: map[int]int64{}}

	db := []lab.Pod{lab.NewPod("default", "db-0", "24h"), lab.NewPod("default", "db-1", "24h")}
	web := lab.NewPod("default", "web", "")
	first := p.act("ADD", p.node.Sandbox(db[0]))
	second := p.act("ADD", p.node.Sandbox(web))
	p.act("DEL", first)
	third := p.act("ADD", p.node.Sandbox(again(db[0]))) // home again
	p.act("ADD", p.node.Sandbox(db[1]))
	p.act("DEL", second)
	p.act("DEL", third)
	p.node.Clock += time.Hour // the cool-down of web is over: its files go
	for i := range howMany(1, 24) {
		box := p.act("ADD", p.node.Sandbox(again([]lab.Pod{db[0], web}[i%2])))
		p.act("DEL", box)
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
					t.Log(d.describe(p.node.NetworksDir()))
					t.Fatalf("in state %d, power cut before change %d of %d: %.200q", p.tried, i, len(p.trace.changes), fmt.Sprint(c.kind, c.path))
				}
			}
		}
	}
	t.Logf("crash states: %d calls made %d changes and %d syncs; %d states tried, %d of them also through the binary, no violation",
		len(p.acts), len(p.trace.changes), syncs, p.tried, p.sampled)
}

// act makes a call under strace.
func (p *play) act(verb string, box *lab.Sandbox) *lab.Sandbox {
	p.Helper()
	output := filepath.Join(p.TempDir(), "trace")
	call := box.IPAMCall(p.net, verb)
	call.Wrap = straceArgs(output)
	reply := p.node.Call(call)
	if reply.Exit != 0 {
		p.Fatalf("%s of %s: %+v", verb, box.Pod.Name, reply)
	}
	before := len(p.trace.changes)
	if err := p.trace.read(output, p.node.Clock); err != nil {
		p.Fatalf("strace: %v", err)
	}
	syncs := slices.ContainsFunc(p.trace.changes[before:], func(c change) bool { return c.kind == "sync" })
	if !syncs {
		p.Fatalf("%s of %s synced nothing: is strace at work?", verb, box.Pod.Name)
	}
	p.acts = append(p.acts, act{verb, box, addressesOf(reply), len(p.trace.changes)})
	if verb == "DEL" {
		box.Remove()
	}
	return box
}

// states are those that the disk may be in when the power is cut just before a change.
func (p *play) states(cut int) (all []disk) {
	lasting := newDisk()
	var pages, names, mirror []change // what need not have arrived
	for i, c := range p.trace.changes[:cut] {
		inMirror := strings.HasPrefix(c.path, p.node.NetworksDir())
		switch {
		case c.kind == "sync" || c.kind == "printed":
		case (c.kind == "link" || c.kind == "unlink" || c.kind == "rename") && inMirror:
			mirror = append(mirror, c)
		case p.isLasting(c, p.trace.changes[i:cut]):
			lasting.do(c, page)
		case c.kind == "page" || c.kind == "size":
			if p.isMirrorFile(c.file) {
				mirror = append(mirror, c)
			} else if c.kind == "size" || strings.Trim(c.data, "\x00") != "" || lasting.files[c.file].pages[c.at] != "" {
				pages = append(pages, c)
			}
		default:
			names = append(names, c)
		}
	}
	for n := range len(names) + 1 {
		base := lasting.clone()
		for _, c := range names[:n] {
			base.do(c, page)
		}
		for _, d := range p.withSome(base, pages) {
			all = append(all, p.withMirror(d, mirror)...)
		}
	}
	return all
}

// isLasting tells whether a change was synced before the power was cut. A directory's sync makes the names in it last; the
// directory itself lasts with what is in it, as in every journalling file system.
func (p *play) isLasting(c change, later []change) bool {
	return slices.ContainsFunc(later, func(s change) bool {
		if c.kind == "page" || c.kind == "size" {
			return s.kind == "sync" && s.file == c.file && s.file != 0
		}
		return s.kind == "sync" && (s.path == filepath.Dir(c.path) || s.path == filepath.Dir(c.to))
	})
}

// isMirrorFile tells whether a file was made in the mirror.
func (p *play) isMirrorFile(file int) bool {
	return slices.ContainsFunc(p.trace.changes, func(c change) bool {
		return c.kind == "link" && c.file == file && strings.HasPrefix(c.path, p.node.NetworksDir())
	})
}

// withSome makes the disks that have some of the pages: each subset, up to a bound on their number; and all of them with
// one torn.
func (p *play) withSome(base disk, pages []change) (all []disk) {
	bound := uint(howMany(4, 10))
	n := uint(len(pages))
	subsets := []uint64{}
	if n <= bound {
		for s := range uint64(1) << n {
			subsets = append(subsets, s)
		}
	} else {
		for i := range min(n, 64) + 1 { // each prefix, each page missing, each alone; and some by chance
			subsets = append(subsets, 1<<i-1, ^uint64(0)&^(1<<i), 1<<i)
		}
		for range 1 << bound {
			subsets = append(subsets, p.dice.Uint64())
		}
		subsets = append(subsets, ^uint64(0))
		if !long {
			p.dice.Shuffle(len(subsets)-1, func(i, j int) { subsets[i], subsets[j] = subsets[j], subsets[i] })
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

// withMirror adds host-local's files, which nobody syncs: all that was written, the names without the newest contents, or
// what was there some changes ago.
func (p *play) withMirror(base disk, mirror []change) (all []disk) {
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
	if p.dice.IntN(howMany(8, 4)) == 0 {
		all = append(all, empty, old)
	}
	return all
}

// boot lays a disk, boots the node with it and sees whether everything is there that anybody was told of.
func (p *play) boot(d disk, cut int, call func(lab.Call) lab.Reply) {
	p.Helper()
	if err := d.lay(p.node.StateDir(), p.node.NetworksDir()); err != nil {
		p.Fatal(err)
	}
	p.node.Reboot()

	homes := map[string][]string{} // what pods with a window were told last
	for _, a := range p.acts {
		name, window := a.box.Pod.Name, a.box.Pod.Annotations != nil
		if a.verb == "ADD" && window && p.wasTold(a, cut) {
			homes[name] = a.told
		}
	}
	p.owner = map[string]*lab.Sandbox{}
	add := func(box *lab.Sandbox) lab.Reply {
		return p.told(box, "ADD", func() lab.Reply { return call(box.IPAMCall(p.net, "ADD")) })
	}
	for i, box := range p.boxes() {
		reply := add(box)
		if home := homes[box.Pod.Name]; home != nil && !slices.Equal(home, addressesOf(reply)) {
			p.Errorf("%s was told %v and gets %+v", box.Pod.Name, home, reply) // I2, I4
		}
		if i < 3 && (reply.Exit != 0 || len(addressesOf(reply)) != 2) {
			p.Errorf("ADD of %s after the power cut: %+v", box.Pod.Name, reply)
		}
		if i == 0 {
			p.whole()
		}
	}
	p.whole()
	if len(p.owner) != 2*len(p.pool) {
		p.Errorf("only %d of %d addresses are to be had\n%s", len(p.owner), 2*len(p.pool), p.list("--all")) // I3
	}
}

// boxes are containers for every address that there is: of somebody new, of the two that have a home, of fillers. Their
// network namespaces are always the same, for it takes longer to make one than to boot a node.
func (p *play) boxes() []*lab.Sandbox {
	if p.rooms == nil {
		for i := range p.pool {
			pod := lab.NewPod("default", fmt.Sprint("filler-", i), "")
			if i == 1 || i == 2 {
				pod = lab.NewPod("default", fmt.Sprint("db-", i-1), "10")
			}
			p.rooms = append(p.rooms, p.node.Sandbox(pod))
		}
	}
	boxes := make([]*lab.Sandbox, len(p.rooms))
	for i, room := range p.rooms {
		box := *room
		box.ID = fmt.Sprintf("%032x%032x", p.dice.Uint64(), i)
		boxes[i] = &box
	}
	return boxes
}

// wasTold tells whether an act's caller had its result when the power was cut.
func (p *play) wasTold(a act, cut int) bool {
	for i, c := range p.trace.changes[:min(cut, a.end)] {
		if c.kind == "printed" && i >= p.begin(a) {
			return true
		}
	}
	return false
}

func (p *play) begin(a act) int {
	begin := 0
	for _, other := range p.acts {
		if other.end < a.end {
			begin = other.end
		}
	}
	return begin
}

// whole reads the store in this process: it must be sound, and no container has half of what it asked for (I5).
func (p *play) whole() {
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
		p.Errorf("the store cannot be read: %v", err)
	}
}

func (c *crowd) store() *store.Store {
	return store.New(store.Dirs{State: c.node.StateDir(), Run: c.node.RunDir()})
}

// inside makes a call in this process: the same plugin without its start, for where there are thousands to be made.
func (c *crowd) inside(call lab.Call) lab.Reply {
	node, err := env.Read(func(name string) string {
		return map[string]string{
			env.StateDir: c.node.StateDir(), env.RunDir: c.node.RunDir(),
			env.BootIDFile: filepath.Join(c.node.Dir, "boot_id"), env.ClockOffset: c.node.Clock.String(),
		}[name]
	})
	if err != nil {
		c.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	plugin := cniplugin.Plugin{
		Service: &ipam.Service{Store: store.New(node.Dirs), Host: node.Host, Plugin: true, Clock: node.Clock, Warn: func(text string) { fmt.Fprintln(&stderr, text) }},
		Stdout:  &stdout, Stderr: &stderr,
	}
	verb := map[string]func(*skel.CmdArgs) error{"ADD": plugin.Add, "DEL": plugin.Del, "CHECK": plugin.Check}[call.Verb]
	done := make(chan error, 1)
	go func() {
		done <- verb(&skel.CmdArgs{ContainerID: call.ContainerID, Netns: call.NetNS, IfName: call.IfName, Args: call.Args, StdinData: []byte(call.Stdin)})
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
