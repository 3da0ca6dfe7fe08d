package explore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Two states are the same if no event can tell them apart. The canonical form leaves out what no
// event depends on: random ids, the counts of the journal, ages that are not compared with
// anything. The search compares the successors of states with the same form (see search.compare),
// so that an error here is found.

// contents is what the store of a state contains.
type contents struct {
	absent  error // why there is nothing to read
	leases  []lease.Lease
	beneath []lease.Lease // without the queued DELs; nil if there are none
	boot    string
	lost    string
	view    string
	known   bool
	cursors [maxSets]netip.Addr
	journal map[string]bool          // whether an entry about the container is of an earlier boot
	cleaned string                   // the boot
	last    map[netip.Addr]time.Time // the journal's last entry
	counts  [maxSets]store.Counts

	nameRecords []store.NamedPod // in the order of their UIDs

	files  map[string]file // of the disk
	broken []string        // what Check has found
}

// errUnused is why there is nothing to read in a store that was never used.
var errUnused = errors.New("the store was never used")

// read reads the store on the disk.
func (w *simulation) read() contents {
	c := contents{absent: errUnused, journal: map[string]bool{}, last: map[netip.Addr]time.Time{},
		files: w.current.Files}
	s := w.openStore(runDir)
	err := s.View(context.Background(), func(tx *store.Tx) error {
		c.absent = nil
		c.leases = allLeases(tx)
		c.boot, c.lost, c.view = tx.Boot(), tx.Lost(), tx.NamespaceIDs()
		c.known, c.cleaned = tx.Imported(w.pool()), tx.PoolBoot(w.pool())
		for i, set := range w.sets {
			c.cursors[i], c.counts[i] = tx.Cursor(w.pool(), set.lease.ID()), tx.Counts(w.pool(), set.lease.ID())
		}
		for record := range tx.NamedPods() {
			c.nameRecords = append(c.nameRecords, record)
		}
		tx.EachBoot(w.bootID(), func(e store.Entry, isEarlier bool) {
			c.journal[e.Container], c.last[e.Address] = c.journal[e.Container] || isEarlier, e.Time
		})
		c.broken = tx.Check()
		return nil
	})
	c.absent = cmp.Or(err, c.absent)
	if queued, err := s.Run().QueuedDELs(""); c.absent == nil && len(queued) > 0 && err == nil {
		s = w.openStore("no-queue")
		must(s.View(context.Background(), func(tx *store.Tx) error {
			c.beneath = allLeases(tx)
			return nil
		}))
	}
	return c
}

func allLeases(tx *store.Tx) (out []lease.Lease) {
	tx.All(func(l lease.Lease, err error) bool {
		must(err)
		out = append(out, l)
		return true
	})
	return out
}

// key is a state in canonical form.
type key [16]byte

func (w *simulation) keyOf(c contents) key {
	sum := sha256.Sum256([]byte(w.form(c)))
	return key(sum[:16])
}

// form returns the canonical form of a state.
func (w *simulation) form(c contents) string {
	f := &canonicalForm{simulation: w, contents: c, boots: map[string]int{}}
	f.nodeLines()
	f.nameLines()
	f.storeLines()
	f.fileLines()
	return f.text.String()
}

// canonicalForm is a form that is being written.
type canonicalForm struct {
	*simulation
	contents
	boots map[string]int
	text  strings.Builder
}

func (f *canonicalForm) line(format string, args ...any) { fmt.Fprintf(&f.text, format+"\n", args...) }

// rest returns how many units a duration is, rounded up and at least 0.
func (c config) rest(d time.Duration) int { return int(max((d+c.unit()-1)/c.unit(), 0)) }

// age returns how many units ago something was, at most oldest. Fractions of a unit do not count:
// moments never add up to one.
func (c config) age(d time.Duration) int {
	return int(min(max(floor(d, c.unit()), -c.oldest()), c.oldest()))
}

// oldest is the largest age that makes a difference, in units: the longest window, twice the
// largest error of the wall clock, and a unit for each.
func (c config) oldest() time.Duration { return (window+2*maxWrong)/c.unit() + 2 }

func floor(d, by time.Duration) time.Duration {
	n := d / by
	if d%by < 0 {
		n--
	}
	return n
}

// stepsClock reports whether the wall clock of this model can be wrong, so that its times matter.
func (w *simulation) stepsClock() bool {
	return w.with[forward]+w.with[back]+w.with[rebootEpoch] > 0
}

// wallAge returns the age of a time of the wall clock by that clock and by a correct one, where
// that matters.
func (f *canonicalForm) wallAge(t time.Time) string {
	if !f.stepsClock() || t.IsZero() {
		return ""
	}
	return fmt.Sprint(" wall ", f.age(f.kernel.now().Wall.Sub(t)), " ", f.age(began.Add(f.elapsed).Sub(t)))
}

// sinceBoot reports whether a time of the wall clock is of this boot, as far as that clock can
// tell. It matters if a file may be one of host-local, or come back.
func (f *canonicalForm) sinceBoot(t time.Time) string {
	if f.with[hostAdd]+f.with[powerCut] == 0 {
		return ""
	}
	now := f.kernel.now()
	return fmt.Sprint("of this boot ", t.After(now.Wall.Add(-now.Boot)))
}

func (f *canonicalForm) nodeLines() {
	for b := range f.sandboxCount() {
		n, me := f.spaces[b], f.node.sandboxes[b]
		if n.alive() {
			f.line("%s %d %d %v given %v %v %v %v %v %v %v %v %v", f.sandboxName(b), n.phase, n.inode, n.addrs,
				me.addrs, me.addKilled, me.byHost, me.pending, me.unfiled, me.deleted, me.delServed, me.unretained,
				me.window)
		} else {
			delServed := me.delServed && f.with[hostDel]+f.with[again] > 0
			f.line("%s %d %v %v %v", f.sandboxName(b), n.phase, me.assigned(), me.byHost, delServed)
			if f.with[restart] > 0 {
				f.line("of an earlier boot %v", n.boot < f.kernel.boot)
			}
		}
		f.entryLine(b)
		if addrs := f.fromHost[b]; addrs[0].IsValid() {
			f.line("may return to %v", addrs)
		}
	}
	for pod, c := range f.pods {
		k := f.node.holds[pod]
		f.line("kept %v %d %v %d", k.addrs, f.rest(k.until-f.elapsed), k.boot == f.kernel.boot, k.current)
		if c.agentOnly {
			f.line("finds the window %v", f.findsWindow(pod))
		}
		if f.stepsClock() {
			f.line("offset %d still %v", f.age(k.offset), k.offset == f.kernel.wall-f.elapsed)
		}
	}
	f.line("left %v %d damage %v", f.left, f.killsLeft, f.damage)
	if f.stepsClock() {
		f.line("wall %d", f.age(f.kernel.wall-f.elapsed))
	}
	for _, name := range sortedKeys(f.unsynced) {
		for _, v := range f.unsynced[name] {
			f.line("unsynced %s", f.fileText(name, v.file, v.missing))
		}
	}
}

// entryLine formats libcni's entry of a sandbox: whether it is of the present namespace, and what
// is older.
func (f *canonicalForm) entryLine(b int) {
	entry := f.entries[b]
	if !entry.addrs[0].IsValid() {
		return
	}
	at, older := began.Add(entry.wall), 0
	for o := range f.sandboxCount() {
		if f.entries[o].addrs[0].IsValid() && f.entries[o].wall < entry.wall {
			older++
		}
	}
	f.line("entry %v of this namespace %v after %d%s", entry.addrs, entry.netns == f.netnsPath(b), older,
		f.wallAge(at))
	for _, a := range entry.addrs[:len(f.sets)] {
		v, exists := f.current.Files[mirrorDir+"/"+a.String()]
		l := f.leaseOf(a)
		f.line("of %v older than the file %v, bound %v, released %v", a, exists && at.Before(time.Unix(0, v.Wall)),
			at.Before(l.BoundAt.Wall), at.Before(l.ReleasedAt.Wall))
	}
}

func (f *canonicalForm) bootName(id string) string {
	switch {
	case id == "":
		return "none"
	case id == f.bootID():
		return "this"
	}
	if _, met := f.boots[id]; !met {
		f.boots[id] = len(f.boots)
	}
	return fmt.Sprint("earlier", f.boots[id])
}

func (f *canonicalForm) storeLines() {
	if f.absent != nil {
		f.line("no store: empty %v", f.absent == errUnused)
		return
	}
	for _, l := range f.leases {
		f.line("%s", f.lease(l))
	}
	viewBoot, _, _ := strings.Cut(f.view, " ")
	f.line("boot %s lost %v view of boot %s", f.bootName(f.contents.boot), f.lost != "", f.bootName(viewBoot))
	f.line("known %v cursors %v counts %v cleaned in boot %s", f.known, f.cursors, f.counts, f.bootName(f.cleaned))
	for b := range f.sandboxCount() {
		if earlier, named := f.journal[f.sandboxName(b)]; named {
			f.line("journal %s earlier %v", f.sandboxName(b), earlier)
		}
	}
}

// lease formats a lease. Fields that are not known here are formatted as they are, so that a new
// field only makes more states.
func (f *canonicalForm) lease(l lease.Lease) string {
	now := f.kernel.now()
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s pod %s uid %s holder %s/%s netns %s %d boot %s", l.Address, l.State,
		l.Name, l.UID, l.Holder.ContainerID, l.Holder.IfName, l.Holder.Netns.Path, l.Holder.Netns.Ino,
		f.bootName(l.Holder.BootID))
	fmt.Fprintf(&out, " bound %s %d%s", f.bootName(l.BoundAt.BootID), f.laterThan(l), f.wallAge(l.BoundAt.Wall))
	if l.State == lease.Held {
		fmt.Fprintf(&out, " rest %d of boot %s, %d longer held%s",
			f.rest(time.Duration(l.Remaining(now))), f.bootName(l.ReleasedAt.BootID), f.heldLonger(l, now),
			f.wallAge(l.ReleasedAt.Wall))
		if l.ReleasedAt.BootID != now.BootID {
			most := f.rest(time.Duration(l.Remaining(now)))
			if f.stepsClock() { // a correction of the wall clock can make the rest longer
				most = f.rest(time.Duration(l.Hold))
			}
			fmt.Fprintf(&out, ", this boot is %d old", min(f.age(now.Boot), most))
		}
	}
	if !l.RefusedAt.IsZero() {
		fmt.Fprintf(&out, " refused %s in boot %s since %d%s", l.RefusedFor, f.bootName(l.RefusedAt.BootID),
			min(int(now.Since(l.RefusedAt)/busy), 1), f.wallAge(l.RefusedAt.Wall))
	}
	fmt.Fprintf(&out, " deferred %v", l.Deferred())
	if f.stepsClock() && l.State == lease.Held { // what is left may be up to the whole length again
		fmt.Fprintf(&out, " hold %d, %d of it over", f.rest(time.Duration(l.Hold)),
			floor(now.Since(l.ReleasedAt), f.unit()))
	}
	l.Hold = 0
	l.ID, l.Pool.DataDir, l.Name, l.UID, l.Holder = "", "", "", "", lease.Holder{}
	l.BoundAt, l.ReleasedAt, l.RefusedAt, l.RefusedFor = lease.Instant{}, lease.Instant{}, lease.Instant{}, ""
	fmt.Fprintf(&out, " %+v", l)
	return out.String()
}

// laterThan counts the leases that were bound earlier in a namespace with the same inode number.
func (f *canonicalForm) laterThan(l lease.Lease) (n int) {
	for _, o := range f.leases {
		same := o.Holder.Netns.Same(l.Holder.Netns) && o.BoundAt.BootID == l.BoundAt.BootID
		if same && o.BoundAt.Boot < l.BoundAt.Boot {
			n++
		}
	}
	return n
}

// heldLonger counts the holds of the pool that began earlier: the oldest is replaced first.
func (f *canonicalForm) heldLonger(l lease.Lease, now lease.Instant) (n int) {
	for _, o := range f.leases {
		both := !l.IsHold && o.State == lease.Held && !o.IsHold
		if both && now.Since(o.ReleasedAt) > now.Since(l.ReleasedAt) {
			n++
		}
	}
	return n
}

// leaseOf returns the lease of an address, one of State None if there is none.
func (c contents) leaseOf(addr netip.Addr) lease.Lease {
	for _, l := range c.leases {
		if l.Address == addr {
			return l
		}
	}
	return lease.Lease{}
}

// fileOf returns the content of host-local's file of an address, "" if there is none.
func (c contents) fileOf(addr netip.Addr) string {
	return c.files[mirrorDir+"/"+addr.String()].Content
}

func (f *canonicalForm) fileLines() {
	for _, name := range sortedKeys(f.current.Files) {
		switch {
		case name == lockFile:
		case strings.HasPrefix(name, queueDir):
		default:
			f.line("%s", f.fileText(name, f.current.Files[name], false)) // a lock file shows that it was not removed
		}
	}
	f.queueLines()
}

// fileText formats a file of host-local's directory: its owner, and what it is older than.
func (f *canonicalForm) fileText(name string, v file, missing bool) string {
	parts := strings.Split(name, "/")
	if missing {
		return name + " missing"
	}
	if len(parts) != 3 {
		return name + " " + v.Content
	}
	addr, err := netip.ParseAddr(parts[2])
	if err != nil {
		text, _, _ := strings.Cut(v.Content, "\n") // the mark ends with random ids: of a store, not of another machine
		return name + " " + strconv.Quote(text)
	}
	written, l := time.Unix(0, v.Wall), f.leaseOf(addr)
	// A file that is not to the second that of its lease is written again, which a power cut may
	// undo.
	is := l.State != lease.None && hostlocal.File{Content: strings.TrimSpace(v.Content)}.IsOf(l, f.kernel.now())
	isLater := is && l.State == lease.Bound && written.After(l.BoundAt.Wall.Add(time.Second)) // it is host-local's
	return fmt.Sprintf("%s %s of the lease %v older than bound %v released %v, later %v, %s%s", name,
		f.content(v.Content), is, written.Before(l.BoundAt.Wall), written.Before(l.ReleasedAt.Wall), isLater,
		f.sinceBoot(written), f.wallAge(written))
}

func (f *canonicalForm) content(text string) string {
	if c, ok := hostlocal.ParseHold(text); ok {
		return fmt.Sprintf("held for %s uid %s hold %v window %v %s rest %d%s",
			c.Name, c.UID, c.IsHold, c.Window, c.IfName,
			min(f.rest(c.Until.Sub(f.kernel.now().Wall)), f.rest(window)+1), // no hold is longer than its window
			f.wallAge(c.Until))
	}
	return text
}

func (f *canonicalForm) queueLines() {
	queued, err := f.openStore(runDir).Run().QueuedDELs(f.bootID())
	must(err)
	for _, r := range queued {
		before, applied := 0, false // a DEL is shown as done before it is applied
		for _, l := range f.leases {
			if l.Holder.ContainerID == r.ContainerID {
				before = r.At.Wall.Compare(l.BoundAt.Wall)
				applied = applied || f.last[l.Address].Equal(r.At.Wall)
			}
		}
		since := f.kernel.now().Wall.Sub(r.At.Wall)
		f.line("queued %s age %d bound %d applied %v", r.ContainerID, f.age(since), before, applied)
		for _, l := range f.beneath { // as it is after a reboot that loses the DEL
			if l.Holder.ContainerID == r.ContainerID && l.State == lease.Bound {
				f.line("recorded %s", f.lease(l))
			}
		}
	}
}
