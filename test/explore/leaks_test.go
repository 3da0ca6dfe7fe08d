package explore

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
)

// probe is how it is proven that no address is lost for good: all sandboxes end and no DEL comes,
// all windows are over, and leasehold alone serves ADDs.
type probe int

const (
	plainProbe  probe = iota
	rebootProbe       // the node boots as well: until then an address of an unknown owner is in use
)

// leaks says which addresses can never be handed out again, when all pods have ended but those
// whose interface was unplugged. It changes the world. What was promised does not matter any more,
// so what is left of many states is the same, and is tried once: seen reports whether it was.
func (w *world) leaks(c contents, seen func(key) bool) string {
	for b := range w.boxCount() {
		if !w.isUnplugged(b) {
			w.end(b)
		}
	}
	w.followed = [maxPods]bool{}
	w.boxes, w.kept, w.left, w.killsLeft, w.unsynced = [maxBoxes]box{}, [maxPods]promise{}, [len(kinds)]int{}, 0, nil
	w.locked, w.damage.files = [maxNets]bool{}, false
	w.kernel.wall = max(w.kernel.wall, w.elapsed) // a clock that is behind is set some day
	w.kernel.pass(10 * window)
	if seen(w.keyOf(c)) {
		return ""
	}
	if w.config.probe == rebootProbe {
		for net := range w.nets {
			w.meetAll(net)
		}
		w.clearRun()
		w.reboot()
		w.kernel.pass(10 * window)
	}
	for net := range w.nets {
		if why := w.fill(net); why != "" {
			return why
		}
	}
	return ""
}

// isUnplugged reports whether a sandbox lives on without an interface. One that has the number of a
// namespace that has ended hides the death of that one's sandbox, and does not count.
func (w *world) isUnplugged(b int) bool {
	for o, n := range w.spaces {
		if o != b && n.phase == gone && n.inode == w.spaces[b].inode {
			return false
		}
	}
	return w.spaces[b].phase == living && w.boxes[b].heard && !w.spaces[b].addrs[0].IsValid()
}

// meetAll makes leasehold meet every address of a network once.
func (w *world) meetAll(net int) {
	for n := range w.size(net) {
		w.kernel.pass(moment)
		_ = w.probeAdd(net, n)
	}
	for n := range w.size(net) {
		who := ipam.Attachment{ContainerID: probeName(net, n), IfName: ifName}
		must(w.service().Release(context.Background(), who, w.where(net)))
	}
}

// size is how many sandboxes have room in a network.
func (w *world) size(net int) int {
	size := uint64(1) << 32
	for _, s := range w.sets[net] {
		size = min(size, s.lease.Size())
	}
	return int(size)
}

func probeName(net, n int) string { return fmt.Sprint("probe-", net, "-", n) }

// fill hands out every address of a network.
func (w *world) fill(net int) string {
	for n := range w.size(net) {
		w.kernel.pass(moment)
		err := w.probeAdd(net, n)
		// A death that is found now has its window as well, and is looked for in one range set at a
		// time.
		for range w.sets[net] {
			if errors.Is(err, ipam.ErrExhausted) {
				w.kernel.pass(10 * window)
				err = w.probeAdd(net, n)
			}
		}
		if err != nil {
			w.capture(w.kernel.now().Wall)
			return fmt.Sprintf("I3: when all pods have ended and all windows are over, "+
				"only %d of %d addresses can be handed out: %v\n     %s", n, w.size(net), err, w.summary())
		}
	}
	return ""
}

func (w *world) probeAdd(net, n int) error {
	s, ctx := w.service(), context.Background()
	r := ipam.Request{
		Pool: w.pool(net), ContainerID: probeName(net, n), IfName: ifName, NetnsPath: "/none",
		Sets: w.leaseSets(net), Options: w.options(),
	}
	_, err := s.Assign(ctx, r)
	if errors.Is(err, ipam.ErrNoEvidence) && w.damage.lost {
		must(s.AcceptLoss(ctx))
		_, err = s.Assign(ctx, r)
	}
	return err
}
