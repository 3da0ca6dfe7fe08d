package crash_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// damagedNode is a node with a populated store, which is damaged repeatedly.
type damagedNode struct {
	*testNode
	rng        *rand.Rand
	disk       disk
	file       string                  // the path of the store
	bound      map[string]*lab.Sandbox // by address
	held       map[string]string       // the names of pods that are away, by address
	known      map[string]string       // the names of all pods with an address, by address
	namespaces []*lab.Sandbox          // network namespaces, which sandboxes share
}

// newDamagedNode returns a node on which pods have most of the addresses. The calls are made in
// this process, which is faster.
func newDamagedNode(t *testing.T) *damagedNode {
	away, up := howMany(15, 100), howMany(40, 200)
	p := &damagedNode{
		testNode: newTestNode(t, away+up+howMany(20, 40), nil), rng: newRand(t),
		held: map[string]string{}, known: map[string]string{},
	}
	onTmpfs(t, p.node.StateDir(), 2<<30) // after a panic bbolt keeps the file mapped
	onTmpfs(t, p.node.NetworksDir(), 64<<20)
	for range 16 {
		p.namespaces = append(p.namespaces, p.node.Sandbox(lab.NewPod("default", "", "")))
	}
	gone := p.node.Sandbox(lab.NewPod("default", "", ""))
	for i := range away {
		pod := lab.NewPod("default", fmt.Sprint("away-", i), "24h")
		sandbox := p.in(gone, pod)
		addr := addressesOf(p.add(sandbox))[0]
		p.track(sandbox, "DEL", func() lab.Reply { return p.inside(sandbox.IPAMCall(p.net, "DEL")) })
		p.held[addr], p.known[addr] = pod.Name, pod.Name
	}
	gone.Remove()
	for i := range up {
		sandbox := p.in(p.namespaces[i%len(p.namespaces)],
			lab.NewPod("default", fmt.Sprint("up-", i), []string{"", "10"}[i%2]))
		p.known[addressesOf(p.add(sandbox))[0]] = sandbox.Pod.Name
	}
	p.bound = p.owner
	p.file = filepath.Join(p.node.StateDir(), "leases.db")
	p.disk = newDisk()
	for _, dir := range []string{p.node.StateDir(), p.node.NetworksDir()} {
		if err := p.disk.load(dir); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// in returns a sandbox of a pod in an existing network namespace.
func (p *damagedNode) in(namespace *lab.Sandbox, pod lab.Pod) *lab.Sandbox {
	sandbox := *namespace
	sandbox.Pod, sandbox.ID = pod, fmt.Sprintf("%032x%032x", p.rng.Uint64(), p.rng.Uint64())
	sandbox.Args = [][2]string{{"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name},
		{"K8S_POD_UID", pod.UID}}
	sandbox.Capabilities = map[string]any{lab.Annotations: pod.Annotations}
	return &sandbox
}

func (p *damagedNode) add(sandbox *lab.Sandbox) lab.Reply {
	return p.track(sandbox, "ADD", func() lab.Reply { return p.inside(sandbox.IPAMCall(p.net, "ADD")) })
}

// restore restores the files of the node, with other contents of the store.
func (p *damagedNode) restore(store contents) {
	p.Helper()
	d := p.disk.clone()
	d.files[d.names[p.file]] = store
	if err := d.restore(p.node.StateDir(), p.node.NetworksDir()); err != nil {
		p.Fatal(err)
	}
	p.owner = map[string]*lab.Sandbox{}
	for addr, sandbox := range p.bound {
		p.owner[addr] = sandbox
	}
}

// undamaged returns the contents of the store's file without damage.
func (p *damagedNode) undamaged() contents { return p.disk.files[p.disk.names[p.file]] }

// used returns the number of pages up to the last one that was written.
func (p *damagedNode) used() int64 {
	last := int64(0)
	for at := range p.undamaged().pages {
		last = max(last, at+1)
	}
	return last
}

// outcome is the effect of damage.
type outcome string

const (
	detected   outcome = "detected"   // the plugin reported it, or replaced the store
	harmless   outcome = "harmless"   // leasectl check found nothing, and no lease was changed
	undetected outcome = "undetected" // none of the others
	refused    outcome = "refused"    // ADD failed
)

// assignRest calls ADD with the damaged store and then assigns the rest of the pool. It returns the
// addresses that were assigned although they are bound or held. The first call runs the binary,
// because a fault may end the process.
func (p *damagedNode) assignRest() (what outcome, reassigned []string) {
	p.Helper()
	before, ok := p.leases()
	reply := p.binary(p.newPod(0))
	if reply.Exit != 0 {
		return refused, []string{fmt.Sprint(reply.Err)}
	}
	_, err := os.Stat(filepath.Join(p.node.StateDir(), "lost"))
	switch {
	case reply.Stderr != "" || err == nil:
		what = detected
	case ok && equal(before, p.known):
		what = harmless
	default:
		what = undetected
	}
	for i := 1; reply.Exit == 0; i++ {
		for _, addr := range addressesOf(reply) {
			if p.known[addr] != "" {
				reassigned = append(reassigned, addr+" of "+p.known[addr])
			}
		}
		reply = p.add(p.newPod(i))
	}
	return what, reassigned
}

// binary calls ADD with the real binary, with a timeout of 15 s.
func (p *damagedNode) binary(sandbox *lab.Sandbox) lab.Reply {
	call := sandbox.IPAMCall(p.net, "ADD")
	call.Wrap = []string{"timeout", "--signal=QUIT", "15"}
	reply := p.track(sandbox, "ADD", func() lab.Reply { return p.node.Call(call) })
	if reply.Exit != 0 && reply.Err == nil {
		p.Errorf("ADD printed no result and no error: exit status %d, %.2000s", reply.Exit, reply.Stderr)
	}
	return reply
}

func (p *damagedNode) newPod(i int) *lab.Sandbox {
	return p.in(p.namespaces[i%len(p.namespaces)], lab.NewPod("default", fmt.Sprint("new-", i), ""))
}

// leases returns the names of the pods in the store, by address, and whether leasectl check found
// no problems.
func (p *damagedNode) leases() (found map[string]string, ok bool) {
	out, err := p.node.Command("timeout", "--signal=QUIT", "15", lab.Bin("leasectl"), "check")
	if err != nil {
		if !strings.Contains(err.Error(), "exit status 1:") || strings.Contains(err.Error(), "goroutine ") {
			p.Errorf("leasectl check: %.2000s\n%s", err, out)
		}
		return nil, false
	}
	found = map[string]string{}
	for _, l := range p.node.Leases("--all") {
		found[l.Address] = l.Pod
	}
	return found, true
}

func equal(a, b map[string]string) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return len(a) == len(b)
}

// damage is a way of damaging a page.
type damage struct {
	name string
	do   func(rng *rand.Rand, page []byte)
}

var damages = []damage{
	{"one bit", func(rng *rand.Rand, b []byte) { b[rng.IntN(len(b))] ^= 1 << rng.IntN(8) }},
	{"one bit of the header", func(rng *rand.Rand, b []byte) { b[rng.IntN(64)] ^= 1 << rng.IntN(8) }},
	{"all bits", func(_ *rand.Rand, b []byte) {
		for i := range b {
			b[i] ^= 0xff
		}
	}},
	{"zeros", func(_ *rand.Rand, b []byte) { clear(b) }},
	{"a sector", func(rng *rand.Rand, b []byte) { clear(b[512*rng.IntN(8):][:512]) }},
}

// someDamage returns two random kinds of damage in the short form, and every kind twice in the long
// one.
func (p *damagedNode) someDamage() []damage {
	if long {
		return slices.Concat(damages, damages)
	}
	p.rng.Shuffle(len(damages), func(i, j int) { damages[i], damages[j] = damages[j], damages[i] })
	return damages[:2]
}

// TestDamagedPages damages every page of a store in turn. With host-local's files as a source, no
// address may be assigned twice.
func TestDamagedPages(t *testing.T) {
	p := newDamagedNode(t)
	counts := map[outcome]int{}
	for at := range p.used() {
		for _, r := range p.someDamage() {
			p.restore(p.damaged(at, r))
			what, reassigned := p.assignRest()
			counts[what]++
			newer := what == refused && strings.Contains(reassigned[0], "newer version")
			if !newer && len(reassigned) > 0 {
				t.Errorf("page %d of %d, %s: %s, %v", at, p.used(), r.name, what, reassigned)
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	t.Logf("damage: %d pages of a store with %d leases, each damaged in %d ways: %v; no address twice",
		p.used(), len(p.known), len(p.someDamage()), counts)
}

// damaged returns the contents of the store's file with one page damaged.
func (p *damagedNode) damaged(at int64, r damage) contents {
	d := p.disk.clone()
	id := d.names[p.file]
	b := make([]byte, page)
	copy(b, d.files[id].pages[at])
	r.do(p.rng, b)
	d.do(change{kind: "page", file: id, at: at, data: string(b)}, page)
	return d.files[id]
}

// TestCutOff truncates the store's file at every page and within pages, and replaces the rest with
// random bytes in some cases.
func TestCutOff(t *testing.T) {
	p := newDamagedNode(t)
	var lengths []int64
	for at := range p.used() + 2 {
		lengths = append(lengths, at*page, at*page+int64(p.rng.IntN(page)))
	}
	lengths = append(lengths, 1, page-1, page+1, 4*page-1, p.undamaged().size-1)
	counts := map[outcome]int{}
	var slowest time.Duration
	for i, length := range lengths {
		d := p.disk.clone()
		id := d.names[p.file]
		d.do(change{kind: "size", file: id, at: length}, page)
		if i%5 == 4 {
			for at := range length / page {
				d.do(change{kind: "page", file: id, at: at, data: string(garbage(p.rng, page))}, page)
			}
		}
		p.restore(d.files[id])
		if i%5 == 3 {
			os.RemoveAll(p.node.RunDir()) // nothing shows that there was a store
		}
		start := time.Now()
		what, reassigned := p.assignRest()
		slowest = max(slowest, time.Since(start))
		counts[what]++
		if what == refused || len(reassigned) > 0 {
			t.Fatalf("truncated to %d: %s, %v", length, what, reassigned)
		}
	}
	t.Logf("truncated: %d lengths: %v; no address twice; recovering and filling the pool took at most %s",
		len(lengths), counts, slowest.Round(time.Millisecond))
}

// TestNewerFormat verifies that a store of a newer format is neither read nor replaced.
func TestNewerFormat(t *testing.T) {
	p := newDamagedNode(t)
	d := p.disk.clone()
	id := d.names[p.file]
	changed := 0
	for at, data := range d.files[id].pages {
		if i := strings.Index(data, "format\x01"); i >= 0 {
			d.do(change{kind: "page", file: id, at: at, data: data[:i+6] + "\x03" + data[i+7:]}, page)
			changed++
		}
	}
	if changed == 0 {
		t.Fatal("the format was not found in the store's file")
	}
	p.restore(d.files[id])
	reply := p.call(p.newPod(0), "ADD")
	if reply.Err == nil || reply.Err.Code != 11 ||
		!strings.Contains(reply.Err.Error(), "format 3") || !strings.Contains(reply.Err.Error(), "2") {
		t.Errorf("ADD: %+v", reply)
	}
	for _, sandbox := range p.bound {
		if reply := p.call(sandbox, "DEL"); reply.Exit != 0 {
			t.Errorf("DEL: %+v", reply)
		}
		break
	}
	if _, err := os.Stat(filepath.Join(p.node.StateDir(), "lost")); err == nil {
		t.Error("the newer store was replaced")
	}
	b, err := os.ReadFile(p.file)
	if err != nil || !slices.Equal(b, d.files[id].bytes()) {
		t.Errorf("the newer store was changed (%v)", err)
	}
}
