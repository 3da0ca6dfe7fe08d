package explore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// node is all of a state that is not on its disk: the kernel, and what sandboxes were told. It is
// kept as plain as can be, for it judges the code under test.
type node struct {
	kernel
	boxes     [maxBoxes]box
	kept      [maxPods]promise
	followed  [maxPods]bool   // the agent has seen the pod's annotation
	left      [len(kinds)]int // how often events may still happen
	killsLeft int             // and how often a call may be killed
	locked    [maxNets]bool
	unsynced  versions
	damage    damage
}

// box is what a sandbox was told.
type box struct {
	addrs   [maxSets]netip.Addr // the answer of its ADD; invalid where it got none
	asked   bool                // an ADD of it was killed
	byHost  bool                // host-local's answer
	deleted bool                // a DEL was asked for
	heard   bool                // and answered
	unkept  bool                // its release promises nothing any more
	window  bool                // its lease has the pod's window
}

func (b box) told() bool { return b.addrs[0].IsValid() }

// promise is what a pod that is away may rely on.
type promise struct {
	current int                 // 1 + the sandbox that was given addresses last
	addrs   [maxSets]netip.Addr // kept for it
	until   time.Duration       // of kernel.elapsed
	boot    int                 // in which its sandbox was released
	offset  time.Duration       // by which the wall clock was wrong then
}

// damage is what has happened to a node that excuses something.
type damage struct {
	lost  bool // the store was removed
	files bool // host-local's files were wiped, or lost by a power cut
}

var kinds = [...]kind{add, lateAdd, del, gc, check, unplug, end, hide, pass, long, reboot, rebootEpoch,
	forward, back, correct, powerCut, agent, snapshot, lose, wipe, wipePlain, wipeOne, hostAdd, hostDel, lock, unlock,
	again, stop, unplugOne}

func newNode(c config) node {
	n := node{kernel: newKernel(), killsLeft: c.kills}
	for i, k := range kinds {
		n.left[i] = c.with[k]
	}
	return n
}

func (n *node) mayHappen(k kind) *int {
	for i := range kinds {
		if kinds[i] == k {
			return &n.left[i]
		}
	}
	panic("no such event: " + k)
}

// account judges an event by what was promised before, and notes what it promises. It returns what
// is wrong, "" if nothing is.
func (w *world) account(e event, out outcome) string {
	if left := w.mayHappen(e.kind); *left < always {
		*left--
	}
	if e.killed > 0 && w.killsLeft < always {
		w.killsLeft--
	}
	if e.killed == 0 && out.err == nil && (e.kind == add || e.kind == agent) && w.locked == [maxNets]bool{} {
		w.rebase()
	}
	switch e.kind {
	case add:
		if e.killed == 0 {
			return w.accountAdd(e.box, out)
		}
		w.boxes[e.box].asked = true
		if w.siblingLives(e.box) {
			w.kept[w.podOf(e.box)] = promise{} // it may have got other addresses, and has the key by now
		}
	case lateAdd:
		excused := errors.Is(out.err, store.ErrBusy) && w.locked[w.netOf(e.box)] ||
			errors.Is(out.err, ipam.ErrNoEvidence) && w.damage.lost
		if e.killed == 0 && !excused && !errors.Is(out.err, ipam.ErrNetns) {
			return fmt.Sprintf("an ADD of a sandbox that has ended was answered %v, %v", out.addrs, out.err)
		}
	case del, stop:
		w.released(e.box)
		w.boxes[e.box].deleted = true
		w.boxes[e.box].heard = w.boxes[e.box].heard || e.killed == 0
		if out.err != nil {
			return fmt.Sprintf("a DEL failed: %v", out.err)
		}
	case gc:
		for b := range w.boxCount() {
			if w.netOf(b) == e.net && w.spaces[b].phase != unborn && !w.isValid(b) {
				w.released(b)
				w.boxes[b].deleted = true
				w.boxes[b].heard = w.boxes[b].heard || e.killed == 0
			}
		}
		if busy := errors.Is(out.err, store.ErrBusy) && w.locked[e.net]; out.err != nil && !busy {
			return fmt.Sprintf("a GC failed: %v", out.err)
		}
	case check:
		if out.err != nil && !w.damage.lost {
			return fmt.Sprintf("I4: a CHECK of a sandbox that was given addresses failed: %v", out.err)
		}
	case agent, snapshot:
		if e.kind == agent && e.killed == 0 && out.err == nil {
			w.follow()
		}
		waits := errors.Is(out.err, store.ErrBusy) || errors.Is(out.err, context.DeadlineExceeded)
		if out.err != nil && !(waits && w.locked != [maxNets]bool{}) && !errors.Is(out.err, store.ErrLost) {
			return fmt.Sprintf("the agent failed: %v", out.err)
		}
	default:
		return w.accountNode(e, out)
	}
	return ""
}

func (w *world) accountNode(e event, out outcome) string {
	switch e.kind {
	case end:
		w.released(e.box)
	case reboot, rebootEpoch, powerCut:
		for b := range w.boxCount() {
			if w.spaces[b].phase == gone {
				w.released(b)
			}
		}
		w.clockChanged()
		w.locked = [maxNets]bool{}
		if w.is.Store == nil && w.damage.lost {
			w.storeLost()
		}
		w.damage.files = w.damage.files || e.kind == powerCut
	case forward, back, correct:
		w.clockChanged()
	case lose:
		w.storeLost()
	case wipe, wipePlain, wipeOne:
		w.damage.files = true
	case hostAdd:
		return w.accountHostAdd(e.box, out)
	case hostDel:
		w.released(e.box)
		w.boxes[e.box].deleted = true
		// A DEL that leasehold has answered leaves no file that names the sandbox.
		ours := !w.boxes[e.box].byHost && !w.boxes[e.box].heard
		w.damage.files = w.damage.files || ours
	case again:
		w.boxes[e.box] = box{}
	case lock, unlock:
		w.locked[e.net] = e.kind == lock
	}
	return ""
}

// rebase notes that the first call of a boot has counted what went by of all holds. From then on
// they go by the clock of this boot.
func (w *world) rebase() {
	for q := range w.pods {
		if p := &w.kept[q]; p.until > 0 {
			p.boot, p.offset = w.kernel.boot, w.kernel.wall-w.elapsed
		}
	}
}

// follow notes whose annotations the agent has seen: a lease has the window from then on, and so
// has each that the pod gets later.
func (w *world) follow() {
	for p, c := range w.pods {
		if b := w.newest(p); c.untold && w.isValid(b) && w.boxes[b].told() {
			w.boxes[b].window, w.followed[p] = true, true
		}
	}
}

// accountAdd judges the answer of leasehold's ADD.
func (w *world) accountAdd(b int, out outcome) string {
	pod, me := w.podOf(b), &w.boxes[b]
	kept := w.promiseTo(pod)
	// One whose first ADD was killed may have addresses from then, and another sandbox the key by
	// now.
	overtaken := me.asked && w.kept[pod].current != 0 && w.kept[pod].current != b+1
	if out.err != nil {
		return w.accountRefusal(b, out.err)
	}
	for i := range w.sets[w.netOf(b)] {
		a := out.addrs[i]
		switch {
		case !a.IsValid():
			return fmt.Sprintf("I5: sandbox %s got addresses of some range sets only", w.boxName(b))
		case me.told() && me.addrs[i] != a:
			return fmt.Sprintf("I4: sandbox %s was told %s before, and now %s", w.boxName(b), me.addrs[i], a)
		case !me.told() && !overtaken && kept.IsValid() && w.kept[pod].addrs[i] != a && !w.siblingLives(b):
			return fmt.Sprintf("I2: pod %s did not come back to %s, which is kept for it", podName(pod),
				w.kept[pod].addrs[i])
		}
		if why := w.inUse(b, a); why != "" {
			return why
		}
	}
	w.spaces[b].addrs = out.addrs
	switch {
	case me.told():
	case overtaken:
		me.addrs, me.unkept = out.addrs, true
	default:
		me.addrs, me.window = out.addrs, w.pods[pod].window > 0 && (!w.pods[pod].untold || w.followed[pod])
		w.kept[pod] = promise{current: b + 1}
	}
	return ""
}

// promiseTo is the first address that is kept for a pod now; not valid where none is.
func (w *world) promiseTo(pod int) netip.Addr {
	if p := w.kept[pod]; w.elapsed < p.until {
		return p.addrs[0]
	}
	return netip.Addr{}
}

func (w *world) siblingLives(b int) bool {
	for o := range w.boxCount() {
		if o != b && w.podOf(o) == w.podOf(b) && w.spaces[o].alive() {
			return true
		}
	}
	return false
}

// siblingSeemsAlive reports whether another sandbox of the pod lives, or a namespace does that has
// its number.
func (w *world) siblingSeemsAlive(b int) bool {
	for o := range w.boxCount() {
		for _, n := range w.spaces {
			same := n.inode == w.spaces[o].inode && n.boot == w.spaces[o].boot
			if o != b && w.podOf(o) == w.podOf(b) && n.alive() && same {
				return true
			}
		}
	}
	return false
}

// inUse says who else was given an address, or is promised it.
func (w *world) inUse(b int, a netip.Addr) string {
	for o := range w.boxCount() {
		n := w.spaces[o]
		// After the DEL of one that is not to be seen, or of whose pod nothing is known, its
		// address is free at once, as with host-local.
		free := w.boxes[o].deleted && (n.phase == hidden || w.boxes[o].byHost || w.boxes[o].unkept)
		if o == b || w.netOf(o) != w.netOf(b) || !n.alive() || free {
			continue
		}
		for _, has := range n.addrs {
			if has == a {
				return fmt.Sprintf("I1: sandbox %s was given %s, which the living sandbox %s has", w.boxName(b), a,
					w.boxName(o))
			}
		}
	}
	for q := range w.pods {
		if q == w.podOf(b) || w.pods[q].net != w.netOf(b) || !w.promiseTo(q).IsValid() {
			continue
		}
		for _, has := range w.kept[q].addrs {
			if has == a {
				return fmt.Sprintf("I2: sandbox %s was given %s, which is kept for pod %s", w.boxName(b), a, podName(q))
			}
		}
	}
	return ""
}

func (w *world) accountRefusal(b int, err error) string {
	switch {
	case errors.Is(err, store.ErrBusy) && w.locked[w.netOf(b)]:
	case errors.Is(err, ipam.ErrNoEvidence) && w.damage.lost:
	case errors.Is(err, ipam.ErrAddressInUse), errors.Is(err, ipam.ErrExhausted):
		if w.promiseTo(w.podOf(b)).IsValid() && !w.siblingSeemsAlive(b) && !w.locked[w.netOf(b)] {
			return fmt.Sprintf("I2: pod %s was refused the address that is kept for it: %v", podName(w.podOf(b)), err)
		}
	default:
		return fmt.Sprintf("an ADD failed: %v", err)
	}
	return ""
}

// accountHostAdd: host-local does what its files say. Where nobody has touched them, they say what
// the store does.
func (w *world) accountHostAdd(b int, out outcome) string {
	if out.err != nil {
		return ""
	}
	if !w.damage.files && !w.damage.lost {
		for _, a := range out.addrs {
			if why := w.inUse(b, a); a.IsValid() && why != "" {
				return "by host-local: " + why
			}
		}
	}
	w.spaces[b].addrs = out.addrs
	w.boxes[b] = box{addrs: out.addrs, byHost: true}
	for _, a := range out.addrs {
		w.givenAway(w.netOf(b), a, b)
	}
	return ""
}

// givenAway ends what was promised of an address.
func (w *world) givenAway(net int, a netip.Addr, to int) {
	for q := range w.pods {
		for _, has := range w.kept[q].addrs {
			if has == a && a.IsValid() && w.pods[q].net == net {
				w.kept[q] = promise{current: w.kept[q].current}
			}
		}
	}
	for o := range w.boxCount() {
		for _, has := range w.boxes[o].addrs {
			if o != to && has == a && a.IsValid() && w.netOf(o) == net {
				w.boxes[o].unkept = true
			}
		}
	}
}

// released starts what a sandbox's end promises to its pod: its own DEL, even one that was killed,
// or the end of its namespace, whichever comes first.
func (w *world) released(b int) {
	me, pod := &w.boxes[b], w.podOf(b)
	isCurrent := w.kept[pod].current == b+1 && w.kept[pod].until == 0
	if !me.told() || me.byHost || me.unkept || !isCurrent || !me.window {
		return
	}
	if w.share != 0 && (w.spaces[b].phase == gone || w.isFull(w.netOf(b))) {
		// How many holds there are when somebody notices that it has ended is not known.
		w.kept[pod] = promise{}
		return
	}
	w.kept[pod] = promise{
		current: b + 1, addrs: me.addrs, until: w.elapsed + w.pods[pod].window,
		boot: w.kernel.boot, offset: w.kernel.wall - w.elapsed,
	}
	if w.spaces[b].phase == gone {
		w.kept[pod].boot = 0 // no call has heard of it
	}
}

// isFull reports whether a range set of a network had as many firm holds before the event as it may
// have.
func (w *world) isFull(net int) bool {
	for _, set := range w.sets[net] {
		firm := 0
		for _, l := range w.before.leases {
			if l.Firm && l.Pool == w.pool(net) && set.lease.Contains(l.Address) {
				firm++
			}
		}
		if firm >= max(1, int(w.share*float64(set.lease.Size()))) {
			return true
		}
	}
	return false
}

// clockChanged: within a boot nothing can step the clock that holds go by. Of a hold of an earlier
// boot the wall clock alone is left.
func (w *world) clockChanged() {
	for q := range w.pods {
		p := &w.kept[q]
		if p.boot != w.kernel.boot && p.offset != w.kernel.wall-w.elapsed {
			*p = promise{current: p.current}
		}
	}
}

// looksNew reports whether nothing shows that there ever was a store: it went, and the node booted.
func (w *world) looksNew() bool { return w.is.Store == nil && !has(w.is.Files, markAt) }

// storeLost: host-local's files say what was held, unless a kill has left an older one behind.
// Where they were removed nothing may be given away before an operator says so.
func (w *world) storeLost() {
	w.damage.lost = true
	for q := range w.pods {
		for _, a := range w.kept[q].addrs {
			f, exists := w.is.Files[w.netDir(w.pods[q].net)+"/"+a.String()]
			c, held := hostlocal.ParseHold(f.Content)
			if a.IsValid() && exists && (!held || c.Name != podName(q) || !c.Firm) || !exists && w.looksNew() {
				w.kept[q] = promise{}
			}
		}
		w.kept[q].current = 0
		w.followed[q] = false
	}
	for b := range w.boxes {
		w.boxes[b].unkept = w.boxes[b].told()
	}
}
