package explore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The sandboxes of a podConfig with a reservation name are those of pods of their own, whose names
// never return. What they leave is kept for the name.

// isNamed reports whether a sandbox belongs to a pod with a reservation name.
func (c config) isNamed(b int) bool { return c.pods[c.podOf(b)].reserveAs != "" }

// podNameOf returns the name of a sandbox's pod.
func (c config) podNameOf(b int) string {
	if c.isNamed(b) {
		return c.sandboxName(b)
	}
	return podName(c.podOf(b))
}

// namedAnnotations returns the annotations of the living pods with a reservation name, which the
// agent sees.
func (w *simulation) namedAnnotations() (out []maintain.PodWindow) {
	for b := range w.sandboxCount() {
		if c := w.pods[w.podOf(b)]; w.isNamed(b) && w.isValid(b) {
			out = append(out, maintain.PodWindow{
				Namespace: tenant, Name: w.podNameOf(b), SetWindow: lease.SetWindow{UID: "uid-" + w.sandboxName(b),
					Window: lease.Window(c.window), ReserveAs: c.reserveAs},
			})
		}
	}
	return out
}

// leavingPods returns the living pods that are being deleted.
func (w *simulation) leavingPods() (out []maintain.LeavingPod) {
	for b := range w.sandboxCount() {
		if w.sandboxes[b].leaves && w.isValid(b) {
			out = append(out, maintain.LeavingPod{Namespace: tenant, Name: w.podNameOf(b),
				Leave: lease.Leave{UID: "uid-" + w.sandboxName(b)}})
		}
	}
	return out
}

// storeName has the agent store the name of a pod before its sandbox is created.
func (w *simulation) storeName(b int) error {
	c := w.pods[w.podOf(b)]
	return w.service().NamePods(context.Background(), []store.NamedPod{{Namespace: tenant,
		Name: w.podNameOf(b), UID: "uid-" + w.sandboxName(b), ReserveAs: c.reserveAs,
		Window: lease.Window(c.window)}})
}

// followNames records that the agent has named the leases of living pods and has marked those that
// leave.
func (w *simulation) followNames() {
	for b := range w.sandboxCount() {
		if me := &w.sandboxes[b]; w.isNamed(b) && w.isValid(b) && me.assigned() {
			me.window, me.leaving = true, me.leaves
		}
	}
}

// keptFor reports whether the addresses that sandbox o has left are kept for its reservation name.
func (w *simulation) keptFor(o int) bool { return w.elapsed < w.sandboxes[o].until }

// wasOfName reports whether an address was kept for a reservation name before the event, by its
// lease or, if the store is lost, by its file: that of a sandbox whose end nobody has noticed yet,
// or whose ADD was killed, is kept although keptFor does not say so, and any of the addresses that
// one boot releases, or that one import finds, may be the one that was released last. A file that
// names sandbox b is of its own ADD, which was killed: then the next one is a repeated ADD.
func (w *simulation) wasOfName(b int, a netip.Addr) bool {
	file := w.before.fileOf(a)
	hold, _ := hostlocal.ParseHold(file)
	isShown := hold.ReserveAs != "" || hostlocal.Names(file, w.sandboxName(b), ifName)
	return w.before.leaseOf(a).ReserveAs != "" || w.damage.lost && isShown
}

// mayBeTaken reports whether a new pod of the name may be given what sandbox o has left: the
// address is on no interface of it any more.
func (w *simulation) mayBeTaken(o int) bool {
	return w.keptFor(o) && (!w.spaces[o].alive() || w.sandboxes[o].deleted && !w.spaces[o].addrs[0].IsValid() &&
		w.spaces[o].phase == living)
}

// mustBeTaken reports whether nothing hides that sandbox o has ended: no living namespace has its
// inode number.
func (w *simulation) mustBeTaken(o int) bool {
	return w.mayBeTaken(o) && !w.seemsAlive(o)
}

// ofName returns the other sandboxes of the same reservation name for which match reports true.
func (w *simulation) ofName(b int, match func(o int) bool) (out []int) {
	for o := range w.sandboxCount() {
		same := w.pods[w.podOf(o)].reserveAs == w.pods[w.podOf(b)].reserveAs
		if o != b && same && match(o) {
			out = append(out, o)
		}
	}
	return out
}

// accountNamedAdd checks the result of an ADD of a pod with a reservation name: it gets what
// another pod of the name has left, if it may, and never what one of them still has.
func (w *simulation) accountNamedAdd(b int, out outcome) string {
	me := &w.sandboxes[b]
	known := !w.pods[w.podOf(b)].agentOnly || me.stored
	if out.err != nil {
		return w.accountNamedRefusal(b, known, out.err)
	}
	for i := range w.sets {
		if a := out.addrs[i]; !a.IsValid() {
			return fmt.Sprintf("I5: sandbox %s got addresses of some range sets only", w.sandboxName(b))
		} else if me.assigned() && me.addrs[i] != a {
			return fmt.Sprintf("I4: sandbox %s was given %s before, and now %s", w.sandboxName(b), me.addrs[i], a)
		} else if why := w.inUse(b, a); why != "" {
			return why
		}
	}
	w.spaces[b].addrs = out.addrs
	if me.assigned() {
		return ""
	}
	from := w.ofName(b, func(o int) bool { return w.keptFor(o) && w.sandboxes[o].addrs == out.addrs })
	if kept := w.ofName(b, w.mustBeTaken); known && len(kept) > 0 && len(from) == 0 && !w.wasOfName(b, out.addrs[0]) {
		return fmt.Sprintf("I2: pod %s did not get what sandbox %s has left for its reservation name",
			w.podNameOf(b), w.sandboxName(kept[0]))
	}
	for _, o := range from {
		if !known {
			return fmt.Sprintf("I2: pod %s, whose name is not known, was given what sandbox %s has left",
				w.podNameOf(b), w.sandboxName(o))
		}
		w.sandboxes[o].until, w.sandboxes[o].unretained = 0, true
	}
	for o := range w.sandboxes { // what was kept for longer than the expectations say
		if w.sandboxes[o].addrs == out.addrs && !w.spaces[o].alive() {
			w.sandboxes[o].unretained = true
		}
	}
	me.addrs, me.window, me.stored = out.addrs, known, false
	return ""
}

// accountKilledAdd ends the expectation that what other sandboxes have left is kept, as far as an
// ADD that was killed has bound it to sandbox b, which gets it when it repeats the ADD.
func (w *simulation) accountKilledAdd(b int) {
	for _, l := range w.read().leases {
		for _, o := range w.ofName(b, func(o int) bool { return w.keptFor(o) || !w.spaces[o].alive() }) {
			isHolder := l.State == lease.Bound && l.Holder.ContainerID == w.sandboxName(b)
			if me := &w.sandboxes[o]; isHolder && slices.Contains(me.addrs[:], l.Address) {
				me.until, me.unretained = 0, true
			}
		}
	}
}

func (w *simulation) accountNamedRefusal(b int, known bool, err error) string {
	if errors.Is(err, ipam.ErrAddressInUse) || errors.Is(err, ipam.ErrExhausted) {
		if kept := w.ofName(b, w.mustBeTaken); known && len(kept) > 0 {
			return fmt.Sprintf("I2: pod %s was refused what sandbox %s has left for its reservation name: %v",
				w.podNameOf(b), w.sandboxName(kept[0]), err)
		}
	}
	switch {
	case errors.Is(err, ipam.ErrExhausted):
	case errors.Is(err, ipam.ErrAddressInUse):
		// It waits for the interface of a sandbox that had its DEL, or for a pod that is leaving.
		if len(w.ofName(b, func(o int) bool {
			me := w.sandboxes[o]
			ends := me.deleted || me.leaving || !w.spaces[o].alive()
			return me.assigned() && me.window && ends
		})) == 0 {
			return fmt.Sprintf("I2: pod %s waits for a pod that does not leave: %v", w.podNameOf(b), err)
		}
	default:
		return fmt.Sprintf("an ADD failed: %v", err)
	}
	return ""
}

// keptForAnother returns for which reservation name an address is kept, "" if for none or for that
// of sandbox b.
func (w *simulation) keptForAnother(b int, a netip.Addr) string {
	for o := range w.sandboxCount() {
		mine := w.isNamed(b) && w.pods[w.podOf(o)].reserveAs == w.pods[w.podOf(b)].reserveAs
		if !w.isNamed(o) || o == b || mine || !w.keptFor(o) {
			continue
		}
		if slices.Contains(w.sandboxes[o].addrs[:], a) {
			return w.pods[w.podOf(o)].reserveAs
		}
	}
	return ""
}

// releasedName begins the hold for the reservation name of a sandbox, as released does for a pod.
func (w *simulation) releasedName(b int) {
	me := &w.sandboxes[b]
	if me.assigned() && !me.unretained && me.window && me.until == 0 {
		me.until = w.elapsed + w.pods[w.podOf(b)].window
	}
}

// nameLines formats what a state has of reservation names: the records of the agent, and the order
// in which the leases were bound and released, because a new pod takes what was released last.
func (f *canonicalForm) nameLines() {
	if !slices.ContainsFunc(f.pods, func(p podConfig) bool { return p.reserveAs != "" }) {
		return
	}
	for _, p := range f.nameRecords {
		f.line("stored name %s", p.UID)
	}
	now := f.kernel.now()
	for _, l := range f.leases {
		if l.ReserveAs == "" {
			continue
		}
		bound, released := 0, 0
		for _, o := range f.leases {
			if o.ReserveAs != "" && o.BoundAt.Wall.Before(l.BoundAt.Wall) {
				bound++
			}
			if o.ReserveAs != "" && o.State == lease.Held && now.Since(o.ReleasedAt) > now.Since(l.ReleasedAt) {
				released++
			}
		}
		f.line("order of %s bound %d released %d", l.Address, bound, released)
	}
	for b := range f.sandboxCount() {
		me := f.node.sandboxes[b]
		f.line("%s until %d leaves %v leaving %v stored %v window %v unretained %v addrs %v", f.sandboxName(b),
			f.rest(me.until-f.elapsed), me.leaves && f.spaces[b].alive(), me.leaving && f.spaces[b].alive(), me.stored,
			me.window, me.unretained, f.addrsIfKept(b))
	}
}

func (f *canonicalForm) addrsIfKept(b int) [maxSets]netip.Addr {
	if f.keptFor(b) || f.spaces[b].alive() {
		return f.node.sandboxes[b].addrs
	}
	return [maxSets]netip.Addr{}
}
