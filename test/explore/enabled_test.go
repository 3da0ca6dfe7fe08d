package explore

import "slices"

// enabled returns the events that may happen in the current state.
func (w *simulation) enabled() []event {
	var out []event
	may := func(k kind, e event) {
		if *w.budget(k) > 0 {
			e.kind = k
			out = append(out, e)
		}
	}
	for b := range w.sandboxCount() {
		w.enabledFor(b, may)
	}
	files := w.mirrorFiles()
	if len(files) > 0 {
		may(wipe, event{})
		may(wipePlain, event{})
	}
	for _, name := range files {
		may(wipeOne, event{cut: name})
	}
	for _, k := range []kind{pass, wait, long, reboot, rebootEpoch, agent, gc} {
		may(k, event{})
	}
	w.enabledClocks(may)
	if w.current.Store != nil {
		may(lose, event{})
	}
	if *w.budget(powerCut) > 0 {
		for _, cut := range w.cuts(w.current) {
			may(powerCut, event{cut: cut})
		}
	}
	return out
}

// enabledFor adds the events of a sandbox. Sandboxes of a pod are created one after the other.
func (w *simulation) enabledFor(b int, may func(kind, event)) {
	e, me, n := event{sandbox: b}, w.sandboxes[b], w.spaces[b]
	isNext := b%w.perPod == 0 || w.spaces[b-1].phase != notCreated
	switch n.phase {
	case notCreated:
		if isNext {
			may(add, e)
			if w.isNamed(b) && !me.stored {
				may(nameFirst, e)
			}
			may(hostAdd, e)
		}
		return
	case living:
		if !me.deleted && !me.byHost && !(me.assigned() && w.damage.lost) { // a lost store does not know the holder
			may(add, e)
		}
		if me.assigned() && !me.deleted && !me.byHost {
			may(check, e)
		}
		if me.delServed && n.addrs[0].IsValid() {
			may(unplug, e)
			may(unplugOne, e)
		}
		if w.isNamed(b) && me.assigned() && !me.leaves && !me.deleted {
			may(leave, e)
		}
		if me.pending && !me.deleted {
			may(hostReady, e)
		}
		may(hide, e)
		may(end, e)
		may(stop, e)
	case hidden:
		may(end, e)
	case gone:
		may(lateAdd, e)
		if n.boot < w.kernel.boot {
			may(restart, e)
		}
	}
	if me.delServed && n.phase != hidden {
		may(again, e)
	}
	may(del, e)
	may(hostDel, e)
}

// maxWrong is the largest error of the wall clock in either direction, less than a step.
const maxWrong = 2 * step

func (w *simulation) enabledClocks(may func(kind, event)) {
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

// mirrorFiles returns the names of host-local's files, sorted.
func (w *simulation) mirrorFiles() []string {
	return slices.DeleteFunc(sortedKeys(w.current.Files), func(name string) bool { return !mirrored(name) })
}

// isCall reports whether an event is a process that may be killed.
func (e event) isCall() bool {
	return e.kind == add || e.kind == del || e.kind == gc || e.kind == agent
}
