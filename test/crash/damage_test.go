package crash_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// damagedNode is a node with a populated store, which is damaged repeatedly.
type damagedNode struct {
	*testNode
	rng        *rand.Rand
	saved      string                  // a directory with copies of the state directory and of host-local's
	store      []byte                  // the store's pages up to the last one that was written, and one more
	bound      map[string]*lab.Sandbox // by address
	known      map[string]string       // the names of all pods with an address, by address
	namespaces []*lab.Sandbox          // network namespaces, which sandboxes share
}

// newDamagedNode returns a node on which pods have most of the addresses. The calls are made in
// this process, which is faster.
func newDamagedNode(t *testing.T) *damagedNode {
	away, up := howMany(15, 100), howMany(40, 200)
	p := &damagedNode{
		testNode: newTestNode(t, away+up+howMany(20, 40)), rng: lab.Rand(t), known: map[string]string{},
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
		addr := p.add(sandbox).Addresses()[0]
		p.track(sandbox, "DEL", func() lab.Reply { return p.inside(sandbox.IPAMCall(p.net, "DEL")) })
		p.known[addr] = pod.Name
	}
	gone.Remove()
	for i := range up {
		sandbox := p.in(p.namespaces[i%len(p.namespaces)],
			lab.NewPod("default", fmt.Sprint("up-", i), []string{"", "10"}[i%2]))
		p.known[p.add(sandbox).Addresses()[0]] = sandbox.Pod.Name
	}
	p.bound = p.owner
	p.saved = t.TempDir()
	p.copy(p.node.StateDir(), p.node.NetworksDir(), p.saved)
	store := must.Read(t, filepath.Join(p.saved, "state/leases.db"))
	used := (len(bytes.TrimRight(store, "\x00")) + page - 1) / page
	p.store = store[:(used+1)*page]
	return p
}

// copy copies directories into another one.
func (p *damagedNode) copy(args ...string) {
	p.Helper()
	out, err := exec.Command("cp", append([]string{"--archive"}, args...)...).CombinedOutput()
	must.Succeed(p, err, args, string(out))
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

// restore restores the files of the node, with other bytes at the beginning of the store. A store
// with fewer ends there.
func (p *damagedNode) restore(store []byte) {
	p.Helper()
	for _, dir := range []string{p.node.StateDir(), p.node.NetworksDir()} {
		must.Succeed(p, empty(dir))
	}
	p.copy(p.saved+"/.", p.node.Dir)
	f, err := os.OpenFile(filepath.Join(p.node.StateDir(), "leases.db"), os.O_RDWR, 0)
	must.Succeed(p, err)
	defer f.Close()
	_, err = f.WriteAt(store, 0)
	if len(store) < len(p.store) {
		err = errors.Join(err, f.Truncate(int64(len(store))))
	}
	must.Succeed(p, err)
	p.owner = maps.Clone(p.bound)
}

// assignRest calls ADD with the damaged store and then assigns the rest of the pool. It returns the
// addresses that were assigned although they are bound or held, or the error if the first ADD was
// refused. That one runs the binary, because a fault may end the process.
func (p *damagedNode) assignRest() (reassigned []string, refused error) {
	p.Helper()
	p.checkEnds()
	reply := p.binary(p.newPod(0))
	if reply.Exit != 0 {
		return nil, reply.Err
	}
	for i := 1; reply.Exit == 0; i++ {
		for _, addr := range reply.Addresses() {
			if p.known[addr] != "" {
				reassigned = append(reassigned, addr+" of "+p.known[addr])
			}
		}
		reply = p.add(p.newPod(i))
	}
	return reassigned, nil
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

// checkEnds checks that leasectl check ends with a report.
func (p *damagedNode) checkEnds() {
	out, err := p.node.Command("timeout", "--signal=QUIT", "15", lab.Bin("leasectl"), "check")
	if err != nil && (!strings.Contains(err.Error(), "exit status 1:") || strings.Contains(err.Error(), "goroutine ")) {
		p.Errorf("leasectl check: %.2000s\n%s", err, out)
	}
}

// damage is a way of damaging a store at a page. It may change the bytes in place.
type damage struct {
	name string
	do   func(rng *rand.Rand, store []byte, at int) []byte
}

// toPage is a damage of one page.
func toPage(name string, do func(rng *rand.Rand, page []byte)) damage {
	return damage{name, func(rng *rand.Rand, store []byte, at int) []byte {
		do(rng, store[at*page:][:page])
		return store
	}}
}

func cut(_ *rand.Rand, store []byte, at int) []byte { return store[:at*page] }

const forgotten = "cut off before it, and nothing shows that there was a store"

var damages = []damage{
	toPage("one bit", func(rng *rand.Rand, b []byte) { b[rng.IntN(len(b))] ^= 1 << rng.IntN(8) }),
	toPage("one bit of the header", func(rng *rand.Rand, b []byte) { b[rng.IntN(64)] ^= 1 << rng.IntN(8) }),
	toPage("all bits", func(_ *rand.Rand, b []byte) {
		for i := range b {
			b[i] ^= 0xff
		}
	}),
	toPage("zeros", func(_ *rand.Rand, b []byte) { clear(b) }),
	toPage("a sector", func(rng *rand.Rand, b []byte) { clear(b[512*rng.IntN(8):][:512]) }),
	{"cut off before it", cut},
	{forgotten, cut},
	{"cut off within it", func(rng *rand.Rand, store []byte, at int) []byte {
		return store[:at*page+1+rng.IntN(page-1)]
	}},
	{"random bytes before it, and cut off", func(rng *rand.Rand, _ []byte, at int) []byte {
		return garbage(rng, at*page)
	}},
}

// someDamage returns three random kinds of damage in the short form, and every kind twice in the
// long one.
func (p *damagedNode) someDamage() []damage {
	if long {
		return slices.Concat(damages, damages)
	}
	p.rng.Shuffle(len(damages), func(i, j int) { damages[i], damages[j] = damages[j], damages[i] })
	return damages[:3]
}

// TestDamagedPages damages a store at every page in turn. With host-local's files as a source, no
// address may be assigned twice.
func TestDamagedPages(t *testing.T) {
	p := newDamagedNode(t)
	pages := len(p.store) / page
	for at := range pages {
		for _, r := range p.someDamage() {
			p.restore(r.do(p.rng, bytes.Clone(p.store), at))
			if r.name == forgotten {
				os.RemoveAll(p.node.RunDir())
			}
			reassigned, refused := p.assignRest()
			newer := refused != nil && strings.Contains(refused.Error(), "newer version")
			if t.Failed() || refused != nil && !newer || len(reassigned) > 0 {
				t.Fatalf("page %d of %d, %s: refused %v, assigned twice: %v", at, pages, r.name, refused, reassigned)
			}
		}
	}
	t.Logf("damage: %d pages of a store with %d leases; no address twice", pages, len(p.known))
}
