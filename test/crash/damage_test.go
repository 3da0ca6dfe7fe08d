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

// A patient is a node with a populated store, which is damaged again and again.
type patient struct {
	*crowd
	dice  *rand.Rand
	disk  disk
	file  string // of the store
	bound map[string]*lab.Sandbox
	held  map[string]string // the pods that are away, by address
	known map[string]string // address -> pod, of all that
	rooms []*lab.Sandbox    // network namespaces for newcomers
}

// newPatient has pods in most of its addresses. They are called in this process: the store is the same.
func newPatient(t *testing.T, mirror bool) *patient {
	away, up := howMany(15, 100), howMany(40, 200)
	p := &patient{crowd: newCrowd(t, away+up+howMany(20, 40), lab.Conf{"mirror": mirror}), dice: dice(t), held: map[string]string{}, known: map[string]string{}}
	onTmpfs(t, p.node.StateDir(), 2<<30) // bbolt keeps the file mapped that it panicked over
	onTmpfs(t, p.node.NetworksDir(), 64<<20)
	for range 16 {
		p.rooms = append(p.rooms, p.node.Sandbox(lab.NewPod("default", "", "")))
	}
	gone := p.node.Sandbox(lab.NewPod("default", "", ""))
	for i := range away {
		pod := lab.NewPod("default", fmt.Sprint("away-", i), "24h")
		box := p.in(gone, pod)
		addr := addressesOf(p.add(box))[0]
		p.told(box, "DEL", func() lab.Reply { return p.inside(box.IPAMCall(p.net, "DEL")) })
		p.held[addr], p.known[addr] = pod.Name, pod.Name
	}
	gone.Remove()
	for i := range up {
		box := p.in(p.rooms[i%len(p.rooms)], lab.NewPod("default", fmt.Sprint("up-", i), []string{"", "10"}[i%2]))
		p.known[addressesOf(p.add(box))[0]] = box.Pod.Name
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

// in is a pod's sandbox in a network namespace that is there already.
func (p *patient) in(room *lab.Sandbox, pod lab.Pod) *lab.Sandbox {
	box := *room
	box.Pod, box.ID = pod, fmt.Sprintf("%032x%032x", p.dice.Uint64(), p.dice.Uint64())
	box.Args = [][2]string{{"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name}, {"K8S_POD_UID", pod.UID}}
	box.Capabilities = map[string]any{lab.Annotations: pod.Annotations}
	return &box
}

func (p *patient) add(box *lab.Sandbox) lab.Reply {
	return p.told(box, "ADD", func() lab.Reply { return p.inside(box.IPAMCall(p.net, "ADD")) })
}

// lay gives the patient its files back, with another one for the store.
func (p *patient) lay(store contents) {
	p.Helper()
	d := p.disk.clone()
	d.files[d.names[p.file]] = store
	if err := d.lay(p.node.StateDir(), p.node.NetworksDir()); err != nil {
		p.Fatal(err)
	}
	p.owner = map[string]*lab.Sandbox{}
	for addr, box := range p.bound {
		p.owner[addr] = box
	}
}

// healthy is the store's file before any damage.
func (p *patient) healthy() contents { return p.disk.files[p.disk.names[p.file]] }

// used is the number of pages that anything was ever written to.
func (p *patient) used() int64 {
	last := int64(0)
	for at := range p.healthy().pages {
		last = max(last, at+1)
	}
	return last
}

// diagnosis is what became of a damage.
type diagnosis string

const (
	detected   diagnosis = "detected"
	harmless   diagnosis = "harmless"
	undetected diagnosis = "undetected"
	refused    diagnosis = "refused"
)

// examine lets the plugin meet the damage, and then fills the pool: nobody may get an address that somebody has or that is
// kept for somebody. What it meets first is met by the binary, for a fault may end the process.
func (p *patient) examine() (what diagnosis, double []string) {
	p.Helper()
	before, sound := p.leases()
	reply := p.binary(p.newcomer(0))
	if reply.Exit != 0 {
		return refused, []string{fmt.Sprint(reply.Err)}
	}
	_, err := os.Stat(filepath.Join(p.node.StateDir(), "lost"))
	switch {
	case reply.Stderr != "" || err == nil:
		what = detected
	case sound && equal(before, p.known):
		what = harmless
	default:
		what = undetected
	}
	for i := 1; reply.Exit == 0; i++ {
		for _, addr := range addressesOf(reply) {
			if p.known[addr] != "" {
				double = append(double, addr+" of "+p.known[addr])
			}
		}
		reply = p.add(p.newcomer(i))
	}
	return what, double
}

// binary is an ADD by the real binary, within the time that any call may take.
func (p *patient) binary(box *lab.Sandbox) lab.Reply {
	call := box.IPAMCall(p.net, "ADD")
	call.Wrap = []string{"timeout", "--signal=QUIT", "15"}
	reply := p.told(box, "ADD", func() lab.Reply { return p.node.Call(call) })
	if reply.Exit != 0 && reply.Err == nil {
		p.Errorf("ADD gives no answer: exit status %d, %.2000s", reply.Exit, reply.Stderr)
	}
	return reply
}

func (p *patient) newcomer(i int) *lab.Sandbox {
	return p.in(p.rooms[i%len(p.rooms)], lab.NewPod("default", fmt.Sprint("newcomer-", i), ""))
}

// leases are the pods that the store names, by address, and whether it proves sound.
func (p *patient) leases() (found map[string]string, sound bool) {
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

// ruin changes a page.
type ruin struct {
	name string
	do   func(dice *rand.Rand, page []byte)
}

var ruins = []ruin{
	{"one bit", func(dice *rand.Rand, b []byte) { b[dice.IntN(len(b))] ^= 1 << dice.IntN(8) }},
	{"one bit of its head", func(dice *rand.Rand, b []byte) { b[dice.IntN(64)] ^= 1 << dice.IntN(8) }},
	{"all bits", func(_ *rand.Rand, b []byte) {
		for i := range b {
			b[i] ^= 0xff
		}
	}},
	{"zeros", func(_ *rand.Rand, b []byte) { clear(b) }},
	{"a sector", func(dice *rand.Rand, b []byte) { clear(b[512*dice.IntN(8):][:512]) }},
}

// someRuins are two kinds for a page in the short form, and each kind several times in the long one.
func (p *patient) someRuins() []ruin {
	if long {
		return slices.Concat(ruins, ruins)
	}
	p.dice.Shuffle(len(ruins), func(i, j int) { ruins[i], ruins[j] = ruins[j], ruins[i] })
	return ruins[:2]
}

// TestDamagedPages damages every page of a store in turn. With host-local's files as a witness nobody ever gets an address
// that another has.
func TestDamagedPages(t *testing.T) {
	p := newPatient(t, true)
	counts := map[diagnosis]int{}
	for at := range p.used() {
		for _, r := range p.someRuins() {
			p.lay(p.ruined(at, r))
			what, double := p.examine()
			counts[what]++
			if what == refused && !strings.Contains(double[0], "newer version") || what != refused && len(double) > 0 {
				t.Errorf("page %d of %d, %s: %s, %v", at, p.used(), r.name, what, double)
			}
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	t.Logf("damage: %d pages of a store with %d leases, each damaged in %d ways: %v; no address twice", p.used(), len(p.known), len(p.someRuins()), counts)
}

// ruined is the store's file with one page changed.
func (p *patient) ruined(at int64, r ruin) contents {
	d := p.disk.clone()
	id := d.names[p.file]
	b := make([]byte, page)
	copy(b, d.files[id].pages[at])
	r.do(p.dice, b)
	d.do(change{kind: "page", file: id, at: at, data: string(b)}, page)
	return d.files[id]
}

// TestDamagedPagesUnmirrored has no other witness than the store, whose branch and freelist pages carry no checksum. An
// address may be handed out twice only by a call that says that the store's last change may be lost.
func TestDamagedPagesUnmirrored(t *testing.T) {
	p := newPatient(t, false)
	counts := map[diagnosis]int{}
	twice := 0
	for at := int64(0); at < p.used(); at += int64(howMany(3, 1)) {
		for _, r := range p.someRuins() {
			p.lay(p.ruined(at, r))
			p.owner = map[string]*lab.Sandbox{} // counted, not judged
			what, double := p.examine()
			counts[what]++
			if what != refused && len(double) > 0 {
				if twice++; what != detected {
					t.Errorf("page %d, %s: %s, and handed out again: %v", at, r.name, what, double)
				}
				t.Logf("page %d, %s: %s, and handed out again: %v", at, r.name, what, double)
			}
		}
	}
	t.Logf("damage without a mirror: %d pages of a store with %d leases, each damaged in %d ways: %v; %d of these handed out an address twice", p.used(), len(p.known), len(p.someRuins()), counts, twice)
}

// TestCutOff cuts the store's file at every page and at odd lengths, and puts garbage in its place.
func TestCutOff(t *testing.T) {
	p := newPatient(t, true)
	var lengths []int64
	for at := range p.used() + 2 {
		lengths = append(lengths, at*page, at*page+int64(p.dice.IntN(page)))
	}
	lengths = append(lengths, 1, page-1, page+1, 4*page-1, p.healthy().size-1)
	counts := map[diagnosis]int{}
	var slowest time.Duration
	for i, length := range lengths {
		d := p.disk.clone()
		id := d.names[p.file]
		d.do(change{kind: "size", file: id, at: length}, page)
		if i%5 == 4 {
			for at := range length / page {
				d.do(change{kind: "page", file: id, at: at, data: string(garbage(p.dice, page))}, page)
			}
		}
		p.lay(d.files[id])
		if i%5 == 3 {
			os.RemoveAll(p.node.RunDir()) // no mark tells that there was a store
		}
		start := time.Now()
		what, double := p.examine()
		slowest = max(slowest, time.Since(start))
		counts[what]++
		if what == refused || len(double) > 0 {
			t.Fatalf("cut at %d: %s, %v", length, what, double)
		}
	}
	t.Logf("cut off: %d lengths: %v; no address twice; the slowest recovery, with a full pool after it, took %s", len(lengths), counts, slowest.Round(time.Millisecond))
}

// TestNoWitness: where nothing tells which addresses are in use, nothing is handed out before somebody says so.
func TestNoWitness(t *testing.T) {
	p := newPatient(t, true)
	for name, lost := range map[string]contents{
		"cut off": {size: 3 * page},
		"empty":   {},
		"garbage": {size: 8 * page, pages: map[int64]string{0: strings.Repeat("garbage ", 512), 1: strings.Repeat("garbage ", 512)}},
	} {
		t.Run(name, func(t *testing.T) {
			p.lay(lost)
			if err := os.RemoveAll(filepath.Join(p.node.NetworksDir(), "net")); err != nil {
				t.Fatal(err)
			}
			box := p.newcomer(0)
			for range 2 {
				reply := p.call(box, "ADD")
				if reply.Err == nil || reply.Err.Code != 11 || !strings.Contains(reply.Err.Error(), "leasectl recover --accept-loss") {
					t.Fatalf("ADD: %+v", reply)
				}
			}
			if reply := p.call(box, "DEL"); reply.Exit != 0 {
				t.Errorf("DEL: %+v", reply)
			}
			if files, _ := filepath.Glob(filepath.Join(p.node.StateDir(), "lost", "*")); len(files) != 1 {
				t.Errorf("kept of the lost store: %v", files)
			}
			if out, err := p.node.Leasectl("recover", "--accept-loss"); err != nil {
				t.Fatalf("leasectl recover --accept-loss: %v\n%s", err, out)
			}
			p.owner = map[string]*lab.Sandbox{}
			p.mustAdd(p.newcomer(1))
			p.sound()
		})
	}
}

// TestNewerFormat: what a newer version has written is neither read nor replaced.
func TestNewerFormat(t *testing.T) {
	p := newPatient(t, true)
	d := p.disk.clone()
	id := d.names[p.file]
	changed := 0
	for at, data := range d.files[id].pages {
		if i := strings.Index(data, "format\x01"); i >= 0 {
			d.do(change{kind: "page", file: id, at: at, data: data[:i+6] + "\x02" + data[i+7:]}, page)
			changed++
		}
	}
	if changed == 0 {
		t.Fatal("where does the store say its format?")
	}
	p.lay(d.files[id])
	reply := p.call(p.newcomer(0), "ADD")
	if reply.Err == nil || reply.Err.Code != 11 || !strings.Contains(reply.Err.Error(), "format 2") || !strings.Contains(reply.Err.Error(), "1") {
		t.Errorf("ADD: %+v", reply)
	}
	for _, box := range p.bound {
		if reply := p.call(box, "DEL"); reply.Exit != 0 {
			t.Errorf("DEL: %+v", reply)
		}
		break
	}
	if _, err := os.Stat(filepath.Join(p.node.StateDir(), "lost")); err == nil {
		t.Error("the newer store was replaced")
	}
	b, err := os.ReadFile(p.file)
	if err != nil || !slices.Equal(b, d.files[id].bytes()) {
		t.Errorf("the newer store was written to (%v)", err)
	}
}
