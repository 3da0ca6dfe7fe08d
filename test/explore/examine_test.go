package explore

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// examine judges a state by itself.
func (w *world) examine(c contents) string {
	if len(c.broken) > 0 {
		return "store.Check: " + strings.Join(c.broken, "; ")
	}
	if c.absent != nil || w.damage.lost {
		return ""
	}
	for b := range w.boxCount() {
		if why := w.examineBox(c, b); why != "" {
			return why
		}
		if why := w.examineSets(c, b); why != "" {
			return why
		}
	}
	if !w.damage.files {
		return w.examineFiles(c)
	}
	return ""
}

// examineBox: whoever was given addresses and lives has them.
func (w *world) examineBox(c contents, b int) string {
	me := w.boxes[b]
	if !me.told() || me.byHost || me.deleted || me.unkept || !w.spaces[b].alive() {
		return ""
	}
	for i := range w.sets[w.netOf(b)] {
		l := c.leaseOf(w.nets[w.netOf(b)].name, me.addrs[i])
		if l.State != lease.Bound || l.Holder.ContainerID != w.boxName(b) {
			return fmt.Sprintf("I4: sandbox %s lives and was given %s, and the store has it %s by %q",
				w.boxName(b), me.addrs[i], l.State, l.Holder.ContainerID)
		}
	}
	return ""
}

// examineSets: a sandbox has an address of each range set, or none.
func (w *world) examineSets(c contents, b int) string {
	bound, sets := 0, len(w.sets[w.netOf(b)])
	for _, l := range c.leases {
		if l.State == lease.Bound && l.Holder.ContainerID == w.boxName(b) {
			bound++
		}
	}
	if w.boxes[b].byHost || w.damage.files || bound == 0 || bound == sets || !w.spaces[b].alive() {
		return ""
	}
	return fmt.Sprintf("I5: sandbox %s has addresses of %d of %d range sets", w.boxName(b), bound, sets)
}

// examineFiles: a file that leasehold has written is of a lease.
func (w *world) examineFiles(c contents) string {
	for _, name := range sortedKeys(w.is.Files) {
		parts := strings.Split(name, "/")
		if len(parts) != 3 || parts[0] != netsDir {
			continue
		}
		addr, err := netip.ParseAddr(parts[2])
		if !has(w.is.Files, netsDir+"/"+parts[1]+"/"+wholeMark) {
			continue // the next ADD looks at all of them
		}
		if err != nil || c.leaseOf(parts[1], addr).State != lease.None {
			continue
		}
		id, _, _ := strings.Cut(w.is.Files[name].Content, "\r\n")
		if hostlocal.IsHold(id) && !w.known {
			continue // a hold that was over when the directory was brought in step: the next ADD removes it
		}
		if b := w.boxNamed(id); b >= 0 && w.boxes[b].byHost || b >= 0 && w.served(b) {
			continue
		}
		return fmt.Sprintf("order: host-local's file of %s says %q, and the store has no lease of it", addr, id)
	}
	return ""
}

// served reports whether host-local may have written a file for a sandbox.
func (w *world) served(b int) bool { return w.with[hostAdd] > 0 && !w.boxes[b].told() }

// examineFence judges a DEL of a sandbox whose DEL was answered before: it changes nothing.
func (w *world) examineFence(e event, before, after contents) string {
	whole := w.known && !w.damage.lost && !w.damage.files && w.with[lock] == 0
	if e.kind != del || e.killed > 0 || !w.wasHeard || !whole {
		return ""
	}
	if !reflect.DeepEqual(before.leases, after.leases) {
		return fmt.Sprintf("I6: a DEL of sandbox %s, whose DEL was answered before, has changed a lease",
			w.boxName(e.box))
	}
	return ""
}
