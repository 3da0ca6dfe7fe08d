package explore

import "slices"

// enabled are the events that may happen in the world's state.
func (w *world) enabled() []event {
	var out []event
	may := func(k kind, e event) {
		if *w.mayHappen(k) > 0 {
			e.kind = k
			out = append(out, e)
		}
	}
	for b := range w.boxCount() {
		w.enabledFor(b, may)
	}
	for n := range w.nets {
		if w.locked[n] {
			may(unlock, event{net: n})
			continue
		}
		may(lock, event{net: n})
		may(gc, event{net: n})
		if len(w.mirrorFiles(n)) > 0 {
			may(wipe, event{net: n})
			may(wipePlain, event{net: n})
		}
		for _, name := range w.mirrorFiles(n) {
			may(wipeOne, event{net: n, cut: name})
		}
	}
	for _, k := range []kind{pass, long, reboot, rebootEpoch, agent, snapshot} {
		may(k, event{})
	}
	w.enabledClocks(may)
	if w.is.Store != nil {
		may(lose, event{})
	}
	if *w.mayHappen(powerCut) > 0 {
		for _, cut := range w.cuts(w.is) {
			may(powerCut, event{cut: cut})
		}
	}
	return out
}

// enabledFor are the events of a sandbox. Sandboxes of a pod are made one after the other.
func (w *world) enabledFor(b int, may func(kind, event)) {
	e, me, n := event{box: b}, w.boxes[b], w.spaces[b]
	isNext := b%w.lives == 0 || w.spaces[b-1].phase != unborn
	free := !w.locked[w.netOf(b)]
	switch n.phase {
	case unborn:
		if isNext {
			may(add, e)
			if free {
				may(hostAdd, e)
			}
		}
		return
	case living:
		if !me.deleted && !me.byHost && !(me.told() && w.damage.lost) { // with the store went who had what
			may(add, e)
		}
		if me.told() && !me.deleted && !me.byHost {
			may(check, e)
		}
		if me.heard && n.addrs[0].IsValid() {
			may(unplug, e)
			may(unplugOne, e)
		}
		may(hide, e)
		may(end, e)
		may(stop, e)
	case hidden:
		may(end, e)
	case gone:
		may(lateAdd, e)
	}
	if me.heard && n.phase != hidden {
		may(again, e)
	}
	may(del, e)
	if free {
		may(hostDel, e)
	}
}

// maxWrong is how far the wall clock goes wrong, in steps.
const maxWrong = 2 * step

func (w *world) enabledClocks(may func(kind, event)) {
	wrong := w.kernel.wall - w.elapsed
	if wrong >= -maxWrong && wrong < maxWrong {
		may(forward, event{})
	}
	if wrong <= maxWrong && wrong > -maxWrong {
		may(back, event{})
	}
	if wrong != 0 {
		may(correct, event{})
	}
}

// mirrorFiles are host-local's files of a network.
func (w *world) mirrorFiles(net int) (out []string) {
	for name := range w.is.Files {
		if mirrored(name) && name[:len(w.netDir(net))] == w.netDir(net) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// isCall reports whether an event is a process that may be killed.
func (e event) isCall() bool {
	return e.kind == add || e.kind == del || e.kind == gc || e.kind == agent
}
