package script_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// The model's times: the clock moves in steps that never come near the end of a hold.
const (
	window      = 7 * time.Minute
	softHold    = 2 * time.Minute
	busyTimeout = 2 * time.Minute
	step        = 50 * time.Second
)

// TestModel calls the plugin in any order and holds what it does against a dumb model, which says after each call what may have
// become of each address. A failure prints its seed.
func TestModel(t *testing.T) {
	checks := "20"
	if os.Getenv("LONG") != "" {
		checks = "1000"
	}
	flag.Set("rapid.checks", checks)
	flag.Set("rapid.nofailfile", "true")
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(tb{rt, t})
		defer m.close()
		rt.Repeat(map[string]func(*rapid.T){
			"add":    m.add,
			"repeat": m.repeat,
			"stop":   m.stop,
			"late":   m.late,
			"vanish": m.vanish,
			"clock":  m.clock,
			"":       m.sound,
		})
	})
}

// A life is a sandbox as the model knows it.
type life struct {
	*lab.Sandbox
	alive      bool // its network namespace is there
	superseded bool // its pod has another address by now

	refusedFor string    // the UID of the pod that has been sent away for it
	refusedAt  time.Time // and since when
}

type model struct {
	tb
	node   *lab.Node
	net    *lab.Network
	lives  map[string]*life     // by container id
	order  []*life              // the same, in the order of their beginning
	leases map[string]lab.Lease // by address, as of the last call
}

func newModel(t tb) *model {
	node := lab.NewNode(t)
	ipam := lab.With(node.IPAM(), lab.Conf{
		"ranges":   [][]lab.Conf{{{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.14"}}},
		"softHold": softHold.String(), "busyTimeout": busyTimeout.String(),
	})
	return &model{
		tb: t, node: node, net: node.Network("net", "1.0.0", node.Bridge(ipam)),
		lives: map[string]*life{}, leases: map[string]lab.Lease{},
	}
}

func (m *model) close() {
	for _, l := range m.lives {
		l.Remove()
	}
}

func (m *model) now() time.Time { return time.Now().Add(m.node.Clock) }

// look reads the leases as they are now, and returns those of before and those of after.
func (m *model) look() (before, after map[string]lab.Lease) {
	before, after = m.leases, map[string]lab.Lease{}
	for _, l := range m.node.Leases() {
		if m.lives[l.Container] == nil {
			m.Fatalf("a container that never was: %+v", l)
		}
		after[l.Address] = l
	}
	m.leases = after
	return before, after
}

// add starts a pod: a new one of that name, or the next sandbox of the same one.
func (m *model) add(rt *rapid.T) {
	name := rapid.SampledFrom([]string{"db-0", "db-1", "db-2", "web-0", "web-1"}).Draw(rt, "name")
	kept := ""
	if strings.HasPrefix(name, "db") {
		kept = window.String()
	}
	pod := lab.NewPod("default", name, kept)
	if last := m.lastOf(name); last != nil && rapid.Bool().Draw(rt, "same pod") {
		pod.UID = last.Pod.UID
	}
	l := &life{Sandbox: m.node.Sandbox(pod), alive: true}
	m.lives[l.ID], m.order = l, append(m.order, l)
	reply := l.Call(m.net, "ADD")
	before, after := m.look()
	rt.Logf("ADD %s (uid %.8s, %.8s): exit %d", name, pod.UID, l.ID, reply.Exit)
	home, holder := m.home(before, pod)
	if reply.Exit != 0 {
		m.refusedAdd(l, reply, before, after, holder)
		return
	}

	address := m.boundTo(after, l)
	if len(address) != 1 || !strings.Contains(reply.Stdout, address[0]+"/") {
		rt.Fatalf("ADD printed %s, and the store says %v", reply.Stdout, address)
	}
	was, had := before[address[0]], false
	if _, had = before[address[0]]; had && !m.mayPass(was, pod) {
		rt.Fatalf("%s got %s, which was %+v", name, address[0], was)
	}
	switch {
	case home == "" || address[0] == home:
	case holder != nil && holder.alive && m.outlived(holder, pod):
		holder.superseded = true
	default:
		rt.Fatalf("%s got %s, want %s", name, address[0], home)
	}
	m.othersStand(before, after, address[0])
}

// lastOf returns the last sandbox of a pod of that name, if there ever was one.
func (m *model) lastOf(name string) *life {
	for _, l := range slices.Backward(m.order) {
		if l.Pod.Name == name {
			return l
		}
	}
	return nil
}

// home returns the address that is promised to a pod, and the sandbox that has it if it is bound.
func (m *model) home(leases map[string]lab.Lease, pod lab.Pod) (address string, holder *life) {
	for _, address := range slices.Sorted(maps.Keys(leases)) {
		l := leases[address]
		h := m.lives[l.Container]
		switch {
		case l.Pod != pod.Name || h.superseded:
		case l.State == "Held" && l.Firm:
			return l.Address, nil
		case l.State == "Bound" && l.Window != "":
			return l.Address, h
		}
	}
	return "", nil
}

// outlived tells whether a pod has been sent away for the holder long enough.
func (m *model) outlived(holder *life, pod lab.Pod) bool {
	return holder.refusedFor == pod.UID && m.now().Sub(holder.refusedAt) >= busyTimeout
}

// refusedAdd checks that there was no other way.
func (m *model) refusedAdd(l *life, reply lab.Reply, before, after map[string]lab.Lease, holder *life) {
	if reply.Err == nil || reply.Err.Code != 11 {
		m.Fatalf("ADD %s: %+v, want code 11", l.Pod.Name, reply)
	}
	m.othersStand(before, after, "")
	if holder != nil && holder.alive && !m.outlived(holder, l.Pod) {
		if !strings.Contains(reply.Err.Msg, holder.ID) {
			m.Fatalf("refused while %s lives: %s", holder.ID, reply.Err.Msg)
		}
		if holder.refusedFor != l.Pod.UID {
			holder.refusedFor, holder.refusedAt = l.Pod.UID, m.now()
		}
		return
	}
	if holder != nil && strings.Contains(reply.Err.Msg, holder.ID) && holder.Reissued() {
		return // it is dead, and a stranger has its namespace's number
	}
	if !strings.Contains(reply.Err.Msg, "no IP addresses available") {
		m.Fatalf("ADD %s: %s", l.Pod.Name, reply.Err.Msg)
	}
	if home, _ := m.home(before, l.Pod); home != "" && holder == nil {
		m.Fatalf("no address for %s, for which %s is kept", l.Pod.Name, home)
	}
	for i := 10; i <= 14; i++ {
		lease, taken := after[fmt.Sprint("10.1.0.", i)]
		if !taken || lease.State == "Held" && !lease.Firm && !m.lives[lease.Container].alive {
			m.Fatalf("no address for %s, while 10.1.0.%d is %+v", l.Pod.Name, i, lease)
		}
	}
}

// mayPass tells whether an address may go from what it was to a pod.
func (m *model) mayPass(was lab.Lease, pod lab.Pod) bool {
	holder := m.lives[was.Container]
	switch {
	case holder.alive:
		return false
	case was.State == "Held" && was.Firm, was.State == "Bound" && was.Window != "" && !holder.superseded:
		return was.Pod == pod.Name
	}
	return true // a cool-down, or what a dead holder without a window has left
}

// othersStand checks the addresses that a call was not about.
func (m *model) othersStand(before, after map[string]lab.Lease, but string) {
	for address, was := range before {
		is, there := after[address]
		holder := m.lives[was.Container]
		if holder.superseded {
			was.Window = "" // its release promises nothing any more
		}
		switch {
		case address == but || is == was:
		case !there && was.State == "Held" && m.lapsed(was):
		case was.State == "Bound" && !holder.alive && (!there || is.State == "Held" && is.Firm == (was.Window != "" && !holder.superseded)):
		case !there && was.State == "Held" && !was.Firm && but != "":
			m.Fatalf("the cool-down of %s ended for another address, %s", address, but)
		default:
			m.Fatalf("%s was %+v, and is %+v", address, was, is)
		}
	}
	for address, is := range after {
		if _, there := before[address]; !there && address != but {
			m.Fatalf("%s came from nowhere: %+v", address, is)
		}
	}
}

func (m *model) lapsed(l lab.Lease) bool {
	until, err := time.Parse(time.RFC3339, l.Until)
	return err == nil && !m.now().Before(until)
}

func (m *model) boundTo(leases map[string]lab.Lease, l *life) (addresses []string) {
	for address, lease := range leases {
		if lease.State == "Bound" && lease.Container == l.ID {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// some draws a sandbox that has a property.
func (m *model) some(rt *rapid.T, has func(*life) bool) *life {
	fit := slices.DeleteFunc(slices.Clone(m.order), func(l *life) bool { return !has(l) })
	if len(fit) == 0 {
		rt.Skip("there is none")
	}
	return fit[rapid.IntRange(0, len(fit)-1).Draw(rt, "sandbox")]
}

func (m *model) isBound(l *life) bool { return len(m.boundTo(m.leases, l)) > 0 }

// repeat asks again for what a sandbox has: nothing changes.
func (m *model) repeat(rt *rapid.T) {
	l := m.some(rt, func(l *life) bool { return l.alive && m.isBound(l) })
	if reply := l.Call(m.net, "ADD"); reply.Exit != 0 {
		rt.Fatalf("ADD of the holder: %+v", reply)
	}
	before, after := m.look()
	m.same(before, after)
}

// stop ends a sandbox as a runtime does.
func (m *model) stop(rt *rapid.T) {
	l := m.some(rt, func(l *life) bool { return l.alive })
	had := m.boundTo(m.leases, l)
	rt.Logf("stop %s (%.8s)", l.Pod.Name, l.ID)
	m.del(l)
	l.Remove()
	l.alive = false
	before, after := m.look()
	if len(had) == 0 {
		m.same(before, after)
		return
	}
	m.othersStand(before, after, had[0])
	is, was := after[had[0]], before[had[0]]
	length := softHold
	if was.Window != "" && !l.superseded {
		length = window
	}
	until, _ := time.Parse(time.RFC3339, is.Until)
	if is.State != "Held" || is.Firm != (length == window) || until.Sub(m.now().Add(length)).Abs() > 10*time.Second {
		rt.Fatalf("after its DEL %s is %+v at %s, want it held for %s (superseded: %t)", had[0], is, m.now(), length, l.superseded)
	}
}

// late repeats the DEL of a sandbox that has nothing.
func (m *model) late(rt *rapid.T) {
	m.del(m.some(rt, func(l *life) bool { return !m.isBound(l) }))
	before, after := m.look()
	m.same(before, after)
}

func (m *model) del(l *life) {
	if reply := l.Call(m.net, "DEL"); reply.Exit != 0 {
		m.Fatalf("DEL %s: %+v", l.Pod.Name, reply)
	}
}

// vanish takes a sandbox away without a DEL.
func (m *model) vanish(rt *rapid.T) {
	l := m.some(rt, func(l *life) bool { return l.alive })
	rt.Logf("%s (%.8s) vanishes", l.Pod.Name, l.ID)
	l.Remove()
	l.alive = false
}

func (m *model) clock(rt *rapid.T) {
	m.node.Clock += step * time.Duration(rapid.IntRange(1, 10).Draw(rt, "steps"))
	before, after := m.look()
	m.othersStand(before, after, "")
}

func (m *model) same(before, after map[string]lab.Lease) {
	if !maps.Equal(before, after) {
		m.Fatalf("leases before: %+v\nafter: %+v", before, after)
	}
}

// sound holds after each step.
func (m *model) sound(*rapid.T) {
	if out, err := m.node.Leasectl("check"); err != nil {
		m.Fatalf("leasectl check: %v\n%s", err, out)
	}
}

// A tb is a rapid.T with the folders of the test that it runs in.
type tb struct {
	*rapid.T
	test *testing.T
}

func (t tb) TempDir() string  { return t.test.TempDir() }
func (t tb) Cleanup(f func()) { t.test.Cleanup(f) }
