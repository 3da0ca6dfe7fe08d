package explore

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// node is the part of a state that is not on the disk: the kernel, and the results of calls with
// what follows from them. It is as simple as possible, because the code under test is compared with
// it.
type node struct {
	kernel
	sandboxes [maxSandboxes]sandboxState
	entries   [maxSandboxes]entry
	holds     [maxPods]hold
	fromHost  [maxSandboxes][maxSets]netip.Addr // see mayReturnTo
	left      [len(kinds)]int                   // how often events may still happen
	killsLeft int                               // how often calls may still be killed
	unsynced  versions
	damage    damage
}

// sandboxState has the results of a sandbox's calls.
type sandboxState struct {
	addrs      [maxSets]netip.Addr // the result of its ADD; invalid if there is none
	addKilled  bool                // an ADD of it was killed
	byHost     bool                // served by host-local
	pending    bool                // host-local's ADD is under way: nothing but its file has the addresses
	unfiled    bool                // and the file was removed, so that another sandbox may have got them
	deleted    bool                // a DEL was called, and perhaps killed
	delServed  bool                // a DEL has returned
	unretained bool                // its release does not begin a hold any more
	window     bool                // its lease has the pod's window

	// Of a sandbox whose pod has a reservation name (see names_test.go).
	until   time.Duration // of kernel.elapsed: its addresses are held for the name
	leaves  bool          // its pod is being deleted
	leaving bool          // the agent has seen that
	stored  bool          // the agent has stored the name, and no ADD has used it
}

// entry is libcni's entry of a container, from the end of its ADD to the end of its DEL. It
// outlives the sandbox, the boot, and the next sandbox with the same id until the end of its ADD.
type entry struct {
	addrs [maxSets]netip.Addr // invalid if there is none
	netns string
	wall  time.Duration // of kernel.wall
}

func (s sandboxState) assigned() bool { return s.addrs[0].IsValid() }

// hold is what leasehold guarantees a pod that is away.
type hold struct {
	current int                 // 1 + the last sandbox that was given addresses
	addrs   [maxSets]netip.Addr // held for the pod
	until   time.Duration       // of kernel.elapsed
	boot    int                 // the boot of the release
	offset  time.Duration       // the wall clock's error at the release
}

// damage is what has happened to a node that permits a loss.
type damage struct {
	lost  bool // the store was removed
	boot  int  // in which it was removed last
	files bool // host-local's files were wiped, or lost by a power cut
}

var kinds = [...]kind{add, lateAdd, del, gc, check, unplug, end, hide, pass, wait, long, reboot, rebootEpoch,
	forward, back, correct, powerCut, agent, lose, wipe, wipePlain, wipeOne, hostAdd, hostReady, hostDel,
	again, restart, stop, unplugOne, leave, nameFirst}

func newNode(c config) node {
	n := node{kernel: newKernel(), killsLeft: c.kills}
	for i, k := range kinds {
		n.left[i] = c.with[k]
	}
	return n
}

func (n *node) budget(k kind) *int {
	for i := range kinds {
		if kinds[i] == k {
			return &n.left[i]
		}
	}
	panic("no such event: " + k)
}

// account checks the result of an event and updates the expectations. It returns which invariant
// the event breaks, "" if none.
func (w *simulation) account(e event, out outcome) string {
	if left := w.budget(e.kind); *left < always {
		*left--
	}
	if e.killed > 0 && w.killsLeft < always {
		w.killsLeft--
	}
	if e.killed == 0 && out.err == nil && (e.kind == add || e.kind == agent) {
		w.rebase()
	}
	w.accountEntry(e, out)
	switch e.kind {
	case add:
		if e.killed == 0 {
			return w.accountAdd(e.sandbox, out)
		}
		w.sandboxes[e.sandbox].addKilled = true
		if w.isNamed(e.sandbox) {
			w.accountKilledAdd(e.sandbox)
		}
		if w.hasSibling(e.sandbox, w.lives) {
			w.holds[w.podOf(e.sandbox)] = hold{} // it may have other addresses, and the key
		}
	case lateAdd:
		excused := errors.Is(out.err, operation.ErrNoEvidence) && w.mayRefuse()
		if e.killed == 0 && !excused && !errors.Is(out.err, ipam.ErrNetns) {
			return fmt.Sprintf("an ADD of a sandbox that has ended returned %v, %v", out.addrs, out.err)
		}
	case del, stop:
		w.released(e.sandbox, e)
		w.sandboxes[e.sandbox].deleted = true
		w.sandboxes[e.sandbox].delServed = w.sandboxes[e.sandbox].delServed || e.killed == 0
		if out.err != nil {
			return fmt.Sprintf("a DEL failed: %v", out.err)
		}
	case gc:
		for b := range w.sandboxCount() {
			if w.spaces[b].phase != notCreated && !w.isValid(b) {
				w.released(b, e)
				w.sandboxes[b].deleted = true
				w.sandboxes[b].delServed = w.sandboxes[b].delServed || e.killed == 0
			}
		}
		if out.err != nil {
			return fmt.Sprintf("a GC failed: %v", out.err)
		}
	case check:
		if out.err != nil && !w.damage.lost {
			return fmt.Sprintf("I4: a CHECK of a sandbox that was given addresses failed: %v", out.err)
		}
	case agent, nameFirst:
		if e.kind == agent && e.killed == 0 && out.err == nil {
			w.follow()
			w.followNames()
		}
		w.sandboxes[e.sandbox].stored = w.sandboxes[e.sandbox].stored || e.kind == nameFirst
		if out.err != nil && !errors.Is(out.err, store.ErrLost) {
			return fmt.Sprintf("the agent failed: %v", out.err)
		}
	default:
		return w.accountNode(e, out)
	}
	return ""
}

func (w *simulation) accountNode(e event, out outcome) string {
	switch e.kind {
	case end:
		w.released(e.sandbox, e)
	case reboot, rebootEpoch, powerCut:
		for b := range w.sandboxCount() {
			if w.spaces[b].phase == gone {
				w.released(b, e)
			}
		}
		w.clockChanged()
		w.moreLost()
		w.damage.files = w.damage.files || e.kind == powerCut
	case forward, back, correct:
		w.clockChanged()
	case lose:
		w.storeLost()
		w.damage.boot = w.kernel.boot
	case wipe, wipePlain, wipeOne:
		w.damage.files = true
		for b := range w.sandboxes {
			w.sandboxes[b].unfiled = w.sandboxes[b].unfiled || w.sandboxes[b].pending
		}
		w.moreLost()
	case hostAdd:
		return w.accountHostAdd(e.sandbox, out)
	case hostDel:
		w.released(e.sandbox, e)
		w.sandboxes[e.sandbox].deleted = true
		// A DEL that leasehold has answered leaves no file that names the sandbox.
		ours := !w.sandboxes[e.sandbox].byHost && !w.sandboxes[e.sandbox].delServed
		w.damage.files = w.damage.files || ours
	case hostReady:
		w.sandboxes[e.sandbox].pending = false
		if w.imports {
			w.fromHost[e.sandbox] = w.sandboxes[e.sandbox].addrs
		}
	case again, restart:
		w.sandboxes[e.sandbox] = sandboxState{}
	}
	return ""
}

// accountEntry records which entries libcni has: it writes one at the end of an ADD, and removes it
// at the end of a DEL.
func (w *simulation) accountEntry(e event, out outcome) {
	if !w.imports || e.killed > 0 || out.err != nil {
		return
	}
	switch b := e.sandbox; e.kind {
	case add:
		w.entries[b] = entry{out.addrs, w.netnsPath(b), w.kernel.wall}
	case hostReady:
		w.entries[b] = entry{w.sandboxes[b].addrs, w.netnsPath(b), w.kernel.wall}
	case del, stop, hostDel:
		w.entries[b] = entry{}
	}
}

// rebase records that the first call of a boot has subtracted the time that has passed from all
// holds. From then on they use the clock of this boot.
func (w *simulation) rebase() {
	for q := range w.pods {
		if p := &w.holds[q]; p.until > 0 {
			p.boot, p.offset = w.kernel.boot, w.kernel.wall-w.elapsed
		}
	}
}

// follow records whose annotations the agent has seen: a lease has the window from then on.
func (w *simulation) follow() {
	for p, c := range w.pods {
		if b := w.newest(p); c.agentOnly && c.reserveAs == "" && w.isValid(b) && w.sandboxes[b].assigned() {
			w.sandboxes[b].window = true
		}
	}
}

// accountAdd checks the result of leasehold's ADD.
func (w *simulation) accountAdd(b int, out outcome) string {
	if w.isNamed(b) {
		return w.accountNamedAdd(b, out)
	}
	pod, me := w.podOf(b), &w.sandboxes[b]
	held := w.heldFor(pod)
	// A sandbox whose first ADD was killed may have addresses of that call, and another sandbox the
	// key.
	overtaken := me.addKilled && w.holds[pod].current != 0 && w.holds[pod].current != b+1
	if out.err != nil {
		return w.accountRefusal(b, out.err)
	}
	for i := range w.sets {
		a := out.addrs[i]
		switch {
		case !a.IsValid():
			return fmt.Sprintf("I5: sandbox %s got addresses of some range sets only", w.sandboxName(b))
		case me.assigned() && me.addrs[i] != a && !(w.damage.files && me.unretained): // host-local has given it away
			return fmt.Sprintf("I4: sandbox %s was given %s before, and now %s", w.sandboxName(b), me.addrs[i], a)
		case !me.assigned() && !overtaken && held.IsValid() && w.holds[pod].addrs[i] != a &&
			!w.hasSibling(b, w.lives) && !w.mayReturnTo(pod, i, a):
			return fmt.Sprintf("I2: pod %s did not get %s, which is held for it", podName(pod), w.holds[pod].addrs[i])
		}
		if why := w.inUse(b, a); why != "" {
			return why
		}
	}
	w.spaces[b].addrs = out.addrs
	switch {
	case me.assigned():
	case overtaken:
		me.addrs, me.unretained = out.addrs, true
		if w.namesPod(b) && me.addrs != w.holds[pod].addrs {
			w.holds[pod] = hold{current: w.holds[pod].current}
		}
	default:
		me.addrs, me.window = out.addrs, w.pods[pod].window > 0 && (!w.pods[pod].agentOnly || w.findsWindow(pod))
		w.holds[pod] = hold{current: b + 1}
		clear(w.fromHost[pod*w.perPod : (pod+1)*w.perPod])
	}
	return ""
}

// namesPod reports whether the ADD of a sandbox has met a lease that was made of its file alone.
// The lease becomes the pod's, whose hold of other addresses ends as with any ADD (docs/design.md,
// "Address files": a container that is unknown).
func (w *simulation) namesPod(b int) bool {
	return slices.ContainsFunc(w.sandboxes[b].addrs[:len(w.sets)], func(a netip.Addr) bool {
		l := w.before.leaseOf(a)
		return l.State == lease.Bound && !l.HasPod() && l.Holder.ContainerID == w.sandboxName(b)
	})
}

// mayReturnTo reports whether a pod may return to an address instead of the one that is held for
// it: since its last ADD by leasehold, host-local has given the address to a sandbox of the pod,
// which libcni's cache has shown alive (docs/design.md, "Address files").
func (w *simulation) mayReturnTo(pod, set int, a netip.Addr) bool {
	for b := range w.sandboxCount() {
		if w.podOf(b) == pod && w.fromHost[b][set] == a {
			return true
		}
	}
	return false
}

// findsWindow reports whether an ADD finds the window, which only the agent knows, in a lease of
// the pod: one that is held, or the last one, which the agent has given it and which the pod still
// has.
func (w *simulation) findsWindow(pod int) bool {
	p := w.holds[pod]
	if p.until != 0 || p.current == 0 {
		return w.heldFor(pod).IsValid()
	}
	last := w.sandboxes[p.current-1]
	return last.window && !last.unretained
}

// heldFor returns the first address that is held for a pod now; invalid if there is none.
func (w *simulation) heldFor(pod int) netip.Addr {
	if p := w.holds[pod]; w.elapsed < p.until {
		return p.addrs[0]
	}
	return netip.Addr{}
}

// hasSibling reports whether match reports true for another sandbox of the same pod.
func (w *simulation) hasSibling(b int, match func(o int) bool) bool {
	for o := range w.sandboxCount() {
		if o != b && w.podOf(o) == w.podOf(b) && match(o) {
			return true
		}
	}
	return false
}

func (w *simulation) lives(b int) bool { return w.spaces[b].alive() }

// seemsAlive reports whether a living namespace has the inode number of a sandbox.
func (w *simulation) seemsAlive(b int) bool {
	return slices.ContainsFunc(w.spaces[:], func(n namespace) bool {
		return n.alive() && n.inode == w.spaces[b].inode && n.boot == w.spaces[b].boot
	})
}

// inUse returns which other sandbox or pod an address belongs to, "" if to none.
func (w *simulation) inUse(b int, a netip.Addr) string {
	for o := range w.sandboxCount() {
		n := w.spaces[o]
		// After the DEL of a sandbox that is hidden, or whose pod is not known, its address is free
		// at once, as with host-local.
		free := w.sandboxes[o].deleted && (n.phase == hidden || w.sandboxes[o].byHost || w.sandboxes[o].unretained)
		if o == b || !n.alive() || free || w.sandboxes[o].unfiled {
			continue
		}
		addrs := n.addrs
		if w.sandboxes[o].pending {
			addrs = w.sandboxes[o].addrs
		}
		if slices.Contains(addrs[:], a) {
			return fmt.Sprintf("I1: sandbox %s was given %s, which sandbox %s has, which is alive",
				w.sandboxName(b), a, w.sandboxName(o))
		}
	}
	if name := w.keptForAnother(b, a); name != "" {
		return fmt.Sprintf("I2: sandbox %s was given %s, which is held for the reservation name %s",
			w.sandboxName(b), a, name)
	}
	for q := range w.pods {
		if q != w.podOf(b) && w.heldFor(q).IsValid() && slices.Contains(w.holds[q].addrs[:], a) {
			return fmt.Sprintf("I2: sandbox %s was given %s, which is held for pod %s", w.sandboxName(b), a, podName(q))
		}
	}
	return ""
}

// mayRefuse reports whether no address may be assigned because a store was lost, which ends with
// the boot.
func (w *simulation) mayRefuse() bool { return w.damage.lost && w.damage.boot == w.kernel.boot }

func (w *simulation) accountRefusal(b int, err error) string {
	switch {
	case errors.Is(err, operation.ErrNoEvidence) && w.mayRefuse():
	case errors.Is(err, ipam.ErrAddressInUse), errors.Is(err, ipam.ErrExhausted):
		if w.heldFor(w.podOf(b)).IsValid() && !w.hasSibling(b, w.seemsAlive) {
			return fmt.Sprintf("I2: pod %s was refused the address that is held for it: %v", podName(w.podOf(b)), err)
		}
	default:
		return fmt.Sprintf("an ADD failed: %v", err)
	}
	return ""
}

// accountHostAdd checks the result of host-local's ADD. host-local only knows its files, which
// agree with the store unless they were changed.
func (w *simulation) accountHostAdd(b int, out outcome) string {
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
	w.sandboxes[b] = sandboxState{addrs: out.addrs, byHost: true, pending: true}
	for _, a := range out.addrs[:len(w.sets)] {
		w.reassigned(a, b)
	}
	return ""
}

// reassigned ends the holds of an address.
func (w *simulation) reassigned(a netip.Addr, to int) {
	for q := range w.pods {
		if slices.Contains(w.holds[q].addrs[:], a) {
			w.holds[q] = hold{current: w.holds[q].current}
		}
	}
	for o := range w.sandboxCount() {
		if o != to && slices.Contains(w.sandboxes[o].addrs[:], a) {
			w.sandboxes[o].unretained = true
		}
	}
}

// released begins the hold for the pod of a sandbox that an event ends: at its DEL, even one that
// was killed, or at the end of its namespace if that comes first.
func (w *simulation) released(b int, e event) {
	if w.isNamed(b) {
		w.releasedName(b)
		return
	}
	me, pod := &w.sandboxes[b], w.podOf(b)
	isCurrent := w.holds[pod].current == b+1 && w.holds[pod].until == 0
	if !me.assigned() || me.byHost || me.unretained || !isCurrent {
		return
	}
	length := w.pods[pod].window
	switch atBoot := w.spaces[b].endedByBoot && !me.deleted; {
	case me.window && (atBoot || !w.mayLimit(b, e)):
	case !me.window && atBoot && w.pods[pod].oneUID:
		length = lease.BootHold
	default:
		return
	}
	w.holds[pod] = hold{
		current: b + 1, addrs: me.addrs, until: w.elapsed + length,
		boot: w.kernel.boot, offset: w.kernel.wall - w.elapsed,
	}
	if w.spaces[b].phase == gone {
		w.holds[pod].boot = 0 // no call has noticed it
	}
}

// mayLimit reports whether the limit of holds, which is one in each model with a limit, may prevent
// that the end of a sandbox begins one. It does not prevent the only hold, which a DEL begins.
func (w *simulation) mayLimit(b int, e event) bool {
	isDEL := (e.kind == del || e.kind == stop) && e.killed == 0
	ends := slices.ContainsFunc(w.before.leases, func(l lease.Lease) bool {
		return l.State == lease.Bound && l.Holder.ContainerID == w.sandboxName(b)
	})
	isReached := slices.ContainsFunc(w.before.leases, func(l lease.Lease) bool { return l.IsHold })
	return w.share > 0 && !(isDEL && ends && !isReached)
}

// clockChanged ends the expectations that depend on the wall clock: those of holds of an earlier
// boot that the clock's error affects. Holds of this boot use a clock that is never set.
func (w *simulation) clockChanged() {
	for q := range w.pods {
		p := &w.holds[q]
		if p.boot != w.kernel.boot && p.offset != w.kernel.wall-w.elapsed {
			*p = hold{current: p.current}
		}
	}
}

// isUsed reports whether an address may be in use that nothing shows, because addresses were given
// in this boot, or host-local's directory has files of addresses and something shows that there was
// a store: a loss concerns the pool. Otherwise no hold is kept whose file is missing, and any
// address may be given (docs/failures.md, "A node": the store and host-local's files are lost).
func (w *simulation) isUsed() bool {
	for b := range w.sandboxCount() {
		if w.sandboxes[b].assigned() && w.spaces[b].boot == w.kernel.boot {
			return true
		}
	}
	return has(w.current.Files, markFile) && slices.ContainsFunc(w.mirrorFiles(), func(name string) bool {
		return filepath.Base(name) != completeMark
	})
}

// moreLost is storeLost if a store was lost and no call has imported the pool since.
func (w *simulation) moreLost() {
	if w.damage.lost && !w.read().known {
		w.storeLost()
	}
}

// storeLost ends the holds that host-local's files do not show, because a killed call has left an
// older file, or because their own file was removed and not written again. If a whole directory was
// removed, no address may be assigned until an operator accepts that.
func (w *simulation) storeLost() {
	w.damage.lost = true
	for q := range w.pods {
		for _, a := range w.holds[q].addrs[:len(w.sets)] {
			f, exists := w.current.Files[mirrorDir+"/"+a.String()]
			c, held := hostlocal.ParseHold(f.Content)
			isShown := held && c.Name == podName(q) && c.IsHold
			if !isShown && (exists || w.with[wipeOne] > 0 || !w.isUsed()) {
				w.holds[q] = hold{}
			}
		}
		w.holds[q].current = 0
	}
	for b := range w.sandboxes {
		me := &w.sandboxes[b]
		for _, a := range me.addrs[:len(w.sets)] {
			c, held := hostlocal.ParseHold(w.current.Files[mirrorDir+"/"+a.String()].Content)
			if me.until > 0 && (!held || !c.IsHold || c.ReserveAs != w.pods[w.podOf(b)].reserveAs) {
				me.until = 0
			}
		}
		me.unretained = me.assigned()
	}
}
