package explore

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// examine returns which invariant an event or the state after it breaks, "" if none.
func (w *simulation) examine(e event, c contents) string {
	if len(c.broken) > 0 {
		return "store.Check: " + strings.Join(c.broken, "; ")
	}
	if c.absent != nil || w.damage.lost {
		return ""
	}
	for b := range w.sandboxCount() {
		if why := w.examineSandbox(c, b); why != "" {
			return why
		}
		if why := w.examineSets(c, b); why != "" {
			return why
		}
	}
	if w.damage.files {
		return ""
	}
	return cmp.Or(w.examineFiles(c), w.examineFence(e, c))
}

// examineSandbox checks that a living sandbox has the addresses that it was given.
func (w *simulation) examineSandbox(c contents, b int) string {
	me := w.sandboxes[b]
	if !me.assigned() || me.byHost || me.deleted || me.unretained || !w.spaces[b].alive() {
		return ""
	}
	for i := range w.sets {
		l := c.leaseOf(me.addrs[i])
		if l.State != lease.Bound || l.Holder.ContainerID != w.sandboxName(b) {
			return fmt.Sprintf("I4: sandbox %s is alive and was given %s, which is %s by %q in the store",
				w.sandboxName(b), me.addrs[i], l.State, l.Holder.ContainerID)
		}
		if !l.HasPod() {
			return fmt.Sprintf("I2: the store does not know the pod of %s, which sandbox %s was given by leasehold",
				me.addrs[i], w.sandboxName(b))
		}
		if w.isNamed(b) && me.window && l.Key().ReserveAs == "" {
			return fmt.Sprintf("I2: %s of the living sandbox %s is not kept for its reservation name any more",
				me.addrs[i], w.sandboxName(b))
		}
	}
	return ""
}

// examineSets checks that a sandbox has an address of each range set, or none.
func (w *simulation) examineSets(c contents, b int) string {
	bound := map[int]bool{}
	for _, l := range c.leases {
		if l.State == lease.Bound && l.Holder.ContainerID == w.sandboxName(b) {
			bound[pool.SetOf(w.leaseSets(), l.Address)] = true
		}
	}
	sets := len(w.sets)
	if w.sandboxes[b].byHost || w.damage.files || len(bound) == 0 || len(bound) == sets || !w.spaces[b].alive() {
		return ""
	}
	return fmt.Sprintf("I5: sandbox %s has addresses of %d of %d range sets", w.sandboxName(b), len(bound), sets)
}

// examineFiles checks that each file that leasehold has written has a lease.
func (w *simulation) examineFiles(c contents) string {
	if !has(w.current.Files, mirrorDir+"/"+completeMark) {
		return "" // the next ADD reads all of them
	}
	for _, name := range w.mirrorFiles() {
		addr, err := netip.ParseAddr(filepath.Base(name))
		if err != nil || c.leaseOf(addr).State != lease.None {
			continue
		}
		id, _, _ := strings.Cut(w.current.Files[name].Content, "\r\n")
		if hostlocal.IsHold(id) && !w.known {
			continue // a hold that was over when the directory was synchronized: the next ADD removes it
		}
		if b := w.sandboxNamed(id); b >= 0 && w.sandboxes[b].byHost || b >= 0 && w.served(b) {
			continue
		}
		return fmt.Sprintf("order: host-local's file of %s contains %q, and the store has no lease of it", addr, id)
	}
	return ""
}

// served reports whether host-local may have written a file for a sandbox.
func (w *simulation) served(b int) bool { return w.with[hostAdd] > 0 && !w.sandboxes[b].assigned() }

// examineFence checks that a DEL of a sandbox whose DEL was answered before changes nothing.
func (w *simulation) examineFence(e event, c contents) string {
	if e.kind != del || e.killed > 0 || !w.delWasServed || !w.known || w.lostDel(w.before, e.sandbox) {
		return ""
	}
	if !reflect.DeepEqual(w.before.leases, c.leases) {
		return fmt.Sprintf("I6: a DEL of sandbox %s, whose DEL was answered before, has changed a lease",
			w.sandboxName(e.sandbox))
	}
	return ""
}

// lostDel reports whether the DEL of a sandbox was queued when the boot ended, so that the sandbox
// still has a lease of that boot.
func (w *simulation) lostDel(c contents, b int) bool {
	return slices.ContainsFunc(c.leases, func(l lease.Lease) bool {
		return l.State == lease.Bound && l.Holder.ContainerID == w.sandboxName(b) && l.Holder.BootID != w.bootID()
	})
}
