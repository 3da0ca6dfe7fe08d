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

// The durations of the model. The clock moves in steps of a length that keeps it away from the end
// of every hold.
const (
	window      = 7 * time.Hour
	softHold    = 2 * time.Hour
	busyTimeout = 2 * time.Hour
	step        = 50 * time.Minute
)

// TestModel runs random calls of the plugin and compares the leases after each call with a model of
// the allowed transitions. A failure prints its seed.
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
			"":       m.check,
		})
	})
}

// modelSandbox is the model's state of a sandbox.
type modelSandbox struct {
	*lab.Sandbox
	alive      bool // its network namespace exists
	superseded bool // its pod has another address now

	refusedFor string    // the UID of the last pod whose ADD was refused because this sandbox is alive
	refusedAt  time.Time // the time of the first of these ADDs
}

type model struct {
	tb
	node      *lab.Node
	net       *lab.Network
	sandboxes map[string]*modelSandbox // by container ID
	order     []*modelSandbox          // the same, by time of creation
	leases    map[string]lab.Lease     // by address, as of the last call
}

func newModel(t tb) *model {
	node := lab.NewNode(t)
	ipam := lab.With(node.IPAM(), lab.Conf{
		"ranges":   [][]lab.Conf{{{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.14"}}},
		"softHold": softHold.String(), "busyTimeout": busyTimeout.String(),
	})
	return &model{
		tb: t, node: node, net: node.Network("net", "1.0.0", node.Bridge(ipam)),
		sandboxes: map[string]*modelSandbox{}, leases: map[string]lab.Lease{},
	}
}

func (m *model) close() {
	for _, l := range m.sandboxes {
		l.Remove()
	}
}

func (m *model) now() time.Time { return time.Now().Add(m.node.Clock) }

// update reads the leases and returns the previous and the current ones.
func (m *model) update() (before, after map[string]lab.Lease) {
	before, after = m.leases, map[string]lab.Lease{}
	for _, l := range m.node.Leases() {
		if m.sandboxes[l.Container] == nil {
			m.Fatalf("lease of an unknown container: %+v", l)
		}
		after[l.Address] = l
	}
	m.leases = after
	return before, after
}

// add calls ADD for a new pod of a name, or for another sandbox of the same pod.
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
	l := &modelSandbox{Sandbox: m.node.Sandbox(pod), alive: true}
	m.sandboxes[l.ID], m.order = l, append(m.order, l)
	reply := l.Call(m.net, "ADD")
	before, after := m.update()
	rt.Logf("ADD %s (uid %.8s, %.8s): exit %d", name, pod.UID, l.ID, reply.Exit)
	reserved, holder := m.reservedFor(before, pod)
	if reply.Exit != 0 {
		m.refusedAdd(l, reply, before, after, holder)
		return
	}

	address := m.boundTo(after, l)
	if len(address) != 1 || !strings.Contains(reply.Stdout, address[0]+"/") {
		rt.Fatalf("ADD printed %s, the store has %v", reply.Stdout, address)
	}
	was, had := before[address[0]], false
	if _, had = before[address[0]]; had && !m.mayAssign(was, pod) {
		rt.Fatalf("%s got %s, which was %+v", name, address[0], was)
	}
	switch {
	case reserved == "" || address[0] == reserved:
	case holder != nil && holder.alive && m.outlived(holder, pod):
		holder.superseded = true
	default:
		rt.Fatalf("%s got %s, want %s", name, address[0], reserved)
	}
	m.checkOthers(before, after, address[0])
}

// lastOf returns the last sandbox of a pod of that name, or nil.
func (m *model) lastOf(name string) *modelSandbox {
	for _, l := range slices.Backward(m.order) {
		if l.Pod.Name == name {
			return l
		}
	}
	return nil
}

// reservedFor returns the address that is reserved for a pod, and its sandbox if it is bound.
func (m *model) reservedFor(leases map[string]lab.Lease, pod lab.Pod) (address string, holder *modelSandbox) {
	for _, address := range slices.Sorted(maps.Keys(leases)) {
		l := leases[address]
		h := m.sandboxes[l.Container]
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

// outlived reports whether the holder has lived for busyTimeout after the first refused ADD of the
// pod.
func (m *model) outlived(holder *modelSandbox, pod lab.Pod) bool {
	return holder.refusedFor == pod.UID && m.now().Sub(holder.refusedAt) >= busyTimeout
}

// refusedAdd checks that ADD had to fail.
func (m *model) refusedAdd(l *modelSandbox, reply lab.Reply, before, after map[string]lab.Lease, holder *modelSandbox) {
	if reply.Err == nil || reply.Err.Code != 11 {
		m.Fatalf("ADD %s: %+v, want code 11", l.Pod.Name, reply)
	}
	m.checkOthers(before, after, "")
	if holder != nil && holder.alive && !m.outlived(holder, l.Pod) {
		if !strings.Contains(reply.Err.Msg, holder.ID) {
			m.Fatalf("the error does not name the holder %s: %s", holder.ID, reply.Err.Msg)
		}
		if holder.refusedFor != l.Pod.UID {
			holder.refusedFor, holder.refusedAt = l.Pod.UID, m.now()
		}
		return
	}
	if holder != nil && strings.Contains(reply.Err.Msg, holder.ID) && holder.Reissued() {
		return // it is dead, but its namespace's inode number is in use again
	}
	if !strings.Contains(reply.Err.Msg, "no IP addresses available") {
		m.Fatalf("ADD %s: %s", l.Pod.Name, reply.Err.Msg)
	}
	if reserved, _ := m.reservedFor(before, l.Pod); reserved != "" && holder == nil {
		m.Fatalf("no address for %s, for which %s is reserved", l.Pod.Name, reserved)
	}
	for i := 10; i <= 14; i++ {
		lease, taken := after[fmt.Sprint("10.1.0.", i)]
		if !taken || lease.State == "Held" && !lease.Firm && !m.sandboxes[lease.Container].alive {
			m.Fatalf("no address for %s, while 10.1.0.%d is %+v", l.Pod.Name, i, lease)
		}
	}
}

// mayAssign reports whether an address with the previous lease was may be assigned to a pod.
func (m *model) mayAssign(was lab.Lease, pod lab.Pod) bool {
	holder := m.sandboxes[was.Container]
	switch {
	case holder.alive:
		return false
	case was.State == "Held" && was.Firm, was.State == "Bound" && was.Window != "" && !holder.superseded:
		return was.Pod == pod.Name
	}
	return true // a soft hold, or the lease of a dead holder without a window
}

// checkOthers checks the leases of all addresses except the one that the call was about.
func (m *model) checkOthers(before, after map[string]lab.Lease, but string) {
	for address, was := range before {
		is, there := after[address]
		holder := m.sandboxes[was.Container]
		if holder.superseded {
			was.Window = "" // its release does not make a firm hold
		}
		switch {
		case address == but || is == was:
		case !there && was.State == "Held" && m.lapsed(was):
		case was.State == "Bound" && !holder.alive &&
			(!there || is.State == "Held" && is.Firm == (was.Window != "" && !holder.superseded)):
		case !there && was.State == "Held" && !was.Firm && but != "":
			m.Fatalf("the soft hold of %s ended when %s was assigned", address, but)
		default:
			m.Fatalf("%s was %+v, and is %+v", address, was, is)
		}
	}
	for address, is := range after {
		if _, there := before[address]; !there && address != but {
			m.Fatalf("unexpected lease of %s: %+v", address, is)
		}
	}
}

func (m *model) lapsed(l lab.Lease) bool {
	until, err := time.Parse(time.RFC3339, l.Until)
	return err == nil && !m.now().Before(until)
}

func (m *model) boundTo(leases map[string]lab.Lease, l *modelSandbox) (addresses []string) {
	for address, lease := range leases {
		if lease.State == "Bound" && lease.Container == l.ID {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// some draws a sandbox for which has returns true.
func (m *model) some(rt *rapid.T, has func(*modelSandbox) bool) *modelSandbox {
	fit := slices.DeleteFunc(slices.Clone(m.order), func(l *modelSandbox) bool { return !has(l) })
	if len(fit) == 0 {
		rt.Skip("no such sandbox")
	}
	return fit[rapid.IntRange(0, len(fit)-1).Draw(rt, "sandbox")]
}

func (m *model) isBound(l *modelSandbox) bool { return len(m.boundTo(m.leases, l)) > 0 }

// repeat repeats the ADD of a sandbox, which must not change anything.
func (m *model) repeat(rt *rapid.T) {
	l := m.some(rt, func(l *modelSandbox) bool { return l.alive && m.isBound(l) })
	if reply := l.Call(m.net, "ADD"); reply.Exit != 0 {
		rt.Fatalf("ADD of the holder: %+v", reply)
	}
	before, after := m.update()
	m.same(before, after)
}

// stop calls DEL and removes the network namespace, as a runtime does.
func (m *model) stop(rt *rapid.T) {
	l := m.some(rt, func(l *modelSandbox) bool { return l.alive })
	had := m.boundTo(m.leases, l)
	rt.Logf("stop %s (%.8s)", l.Pod.Name, l.ID)
	m.del(l)
	l.Remove()
	l.alive = false
	before, after := m.update()
	if len(had) == 0 {
		m.same(before, after)
		return
	}
	m.checkOthers(before, after, had[0])
	is, was := after[had[0]], before[had[0]]
	length := softHold
	if was.Window != "" && !l.superseded {
		length = window
	}
	until, _ := time.Parse(time.RFC3339, is.Until)
	if is.State != "Held" || is.Firm != (length == window) || until.Sub(m.now().Add(length)).Abs() > 10*time.Minute {
		rt.Fatalf("%s after DEL: %+v at %s, want it held for %s (superseded: %t)",
			had[0], is, m.now(), length, l.superseded)
	}
}

// late calls DEL for a sandbox without an address, which must not change anything.
func (m *model) late(rt *rapid.T) {
	m.del(m.some(rt, func(l *modelSandbox) bool { return !m.isBound(l) }))
	before, after := m.update()
	m.same(before, after)
}

func (m *model) del(l *modelSandbox) {
	if reply := l.Call(m.net, "DEL"); reply.Exit != 0 {
		m.Fatalf("DEL %s: %+v", l.Pod.Name, reply)
	}
}

// vanish removes the network namespace of a sandbox without a DEL.
func (m *model) vanish(rt *rapid.T) {
	l := m.some(rt, func(l *modelSandbox) bool { return l.alive })
	rt.Logf("remove the network namespace of %s (%.8s)", l.Pod.Name, l.ID)
	l.Remove()
	l.alive = false
}

func (m *model) clock(rt *rapid.T) {
	m.node.Clock += step * time.Duration(rapid.IntRange(1, 10).Draw(rt, "steps"))
	before, after := m.update()
	m.checkOthers(before, after, "")
}

func (m *model) same(before, after map[string]lab.Lease) {
	if !maps.Equal(before, after) {
		m.Fatalf("leases before: %+v\nafter: %+v", before, after)
	}
}

// check runs after each step.
func (m *model) check(*rapid.T) {
	if out, err := m.node.Leasectl("check"); err != nil {
		m.Fatalf("leasectl check: %v\n%s", err, out)
	}
}

// tb is a rapid.T with the directories and cleanup functions of its test.
type tb struct {
	*rapid.T
	test *testing.T
}

func (t tb) TempDir() string  { return t.test.TempDir() }
func (t tb) Cleanup(f func()) { t.test.Cleanup(f) }
