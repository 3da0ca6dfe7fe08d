package explore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
)

// leaks returns which addresses can never be assigned again after all pods have ended except those
// whose interface was unplugged: all sandboxes end without a DEL, all windows end, and only
// leasehold serves ADDs. It changes the simulation. Holds do not count here, so many states
// become the same one, which is tried once: seen reports whether it was.
func (w *simulation) leaks(c contents, seen func(key) bool) string {
	for b := range w.sandboxCount() {
		if !w.isUnplugged(b) {
			w.end(b)
		}
	}
	w.sandboxes, w.holds, w.unsynced = [maxSandboxes]sandboxState{}, [maxPods]hold{}, nil
	w.left, w.killsLeft = [len(kinds)]int{}, 0
	w.damage.files = false
	w.kernel.wall = max(w.kernel.wall, w.elapsed) // a clock that is slow is corrected at last
	w.kernel.pass(10 * window)
	if seen(w.keyOf(c)) {
		return ""
	}
	boots := 0
	if w.with[hostAdd]+w.with[lose]+w.with[wipe]+w.with[powerCut] > 0 {
		boots++ // until which an address of an unknown owner is in use
	}
	if w.isFileHidden(c) {
		boots++ // only the first one ends that lease
	}
	for range boots {
		w.assignAll()
		w.clearRun()
		w.reboot()
		w.kernel.pass(10 * window)
	}
	return w.fill()
}

// isFileHidden reports whether host-local has given another container the address of a bound lease,
// whose container has lost its file. No ADD compares such a lease with its file, so that the other
// container counts as an unknown owner only after the boot that ends the lease.
func (w *simulation) isFileHidden(c contents) bool {
	return slices.ContainsFunc(c.leases, func(l lease.Lease) bool {
		text := w.current.Files[mirrorDir+"/"+l.Address.String()].Content
		_, _, isNamed := hostlocal.ParseOwner(text)
		return l.State == lease.Bound && isNamed && !hostlocal.Names(text, l.Holder.ContainerID, ifName)
	})
}

// isUnplugged reports whether a sandbox is alive without an interface. One whose namespace has the
// inode number of one that has ended does not count: it hides the end of that one.
func (w *simulation) isUnplugged(b int) bool {
	for o, n := range w.spaces {
		if o != b && n.phase == gone && n.inode == w.spaces[b].inode {
			return false
		}
	}
	return w.spaces[b].phase == living && w.sandboxes[b].delServed && !w.spaces[b].addrs[0].IsValid()
}

// assignAll assigns every free address once, and releases it.
func (w *simulation) assignAll() {
	for n := range w.size() {
		w.kernel.pass(moment)
		_ = w.probeAdd(n)
	}
	for n := range w.size() {
		who := lease.Attachment{ContainerID: probeName(n), IfName: ifName}
		must(w.verbs().Release(context.Background(), who, w.where()))
	}
}

// size returns for how many sandboxes there are addresses.
func (w *simulation) size() int {
	size := uint64(1) << 32
	for _, s := range w.sets {
		size = min(size, s.lease.Size())
	}
	return int(size)
}

func probeName(n int) string { return fmt.Sprint("probe-", n) }

// fill assigns every address.
func (w *simulation) fill() string {
	for n := range w.size() {
		w.kernel.pass(moment)
		err := w.probeAdd(n)
		// A holder that is proven dead only now has a window as well, and an ADD proves it for one
		// range set at a time.
		for range w.sets {
			if errors.Is(err, ipam.ErrExhausted) {
				w.kernel.pass(10 * window)
				err = w.probeAdd(n)
			}
		}
		if err != nil {
			w.capture(w.kernel.now().Wall)
			return fmt.Sprintf("I3: when all pods have ended and all windows are over, "+
				"only %d of %d addresses can be assigned: %v\n%s", n, w.size(), err, w.form(w.read()))
		}
	}
	return ""
}

func (w *simulation) probeAdd(n int) error {
	s, ctx := w.verbs(), context.Background()
	r := ipam.Request{
		Pool: w.pool(), ContainerID: probeName(n), IfName: ifName, NetnsPath: "/none",
		Sets: w.leaseSets(), Options: w.options(),
	}
	_, err := s.Assign(ctx, r)
	if errors.Is(err, operation.ErrNoEvidence) && w.damage.lost {
		must(w.service().AcceptLoss(ctx))
		_, err = s.Assign(ctx, r)
	}
	return err
}
