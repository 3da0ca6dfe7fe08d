package explore

import (
	"maps"
	"slices"
	"strings"
)

// A call that is killed leaves behind what it had done until then. What it does to the disk is a
// sequence of file operations, and the kernel says in which order (inotify): so the states between
// them are put together from what was there before and after, without a line of the code under test
// knowing of it.

// remains are the disks that a killed call leaves behind, the earliest first. The one before its
// first operation and the one after its last are not among them.
func remains(before image, records []record) []image {
	var out []image
	now := before
	for _, r := range records {
		for _, op := range r.ops {
			for _, next := range apply(now, op, r.after) {
				out, now = append(out, next), next
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out[:len(out)-1]
}

// apply returns the disk after an operation, and before that any that is there in its middle: a
// file is made empty before it is written.
func apply(now image, op operation, after image) []image {
	next := now.clone()
	then, remains := after.Files[op.name]
	switch op.do {
	case commits:
		next.Store = after.Store
		return []image{next}
	case removes:
		delete(next.Files, op.name)
		return []image{next}
	case creates:
		next.Files[op.name] = file{Wall: then.Wall}
		if then.Content == "" {
			next.Files[op.name] = then
		}
		return []image{next}
	}
	if !remains {
		return nil // written, and removed before the next look
	}
	next.Files[op.name] = then
	if was := now.Files[op.name]; was.Content == "" || then.Content == "" {
		return []image{next}
	}
	torn := now.clone()
	torn.Files[op.name] = file{Wall: then.Wall}
	return []image{torn, next}
}

// versions are what a file may be after a power cut beside what it is: what it was before, back to
// when it was last synced. Nobody syncs host-local's files; the kernel does within a step of the
// clock.
type versions map[string][]version

type version struct {
	file
	missing bool
}

// remember notes what an event has changed of host-local's files.
func (w *world) remember(before image, e event) {
	switch e.kind {
	case pass, long, reboot, rebootEpoch, powerCut:
		w.unsynced = nil
		return
	}
	if w.with[powerCut] == 0 {
		return
	}
	old := maps.Clone(w.unsynced)
	if old == nil {
		old = versions{}
	}
	names := maps.Clone(before.Files)
	maps.Copy(names, w.is.Files)
	for name := range names {
		was, existed := before.Files[name]
		is, exists := w.is.Files[name]
		v := version{was, !existed}
		if !mirrored(name) || existed == exists && was == is || slices.Contains(old[name], v) {
			continue
		}
		old[name] = append(slices.Clone(old[name]), v)
	}
	w.unsynced = old
}

// mirrored reports whether a file is one of host-local's, other than its lock.
func mirrored(name string) bool {
	return strings.HasPrefix(name, netsDir+"/") && !strings.HasSuffix(name, "/lock")
}

// A power cut's choices, a letter for each file that was not synced: as it is, empty, or the
// version of that number.
const (
	asItIs  = '='
	emptied = '0'
)

// cuts are all power cuts that a state may suffer.
func (w *world) cuts(now image) []string {
	out := []string{""}
	for _, name := range sortedKeys(w.unsynced) {
		letters := string(asItIs)
		if is, exists := now.Files[name]; exists && is.Content != "" {
			letters += string(emptied)
		}
		for i, v := range w.unsynced[name] {
			if is, exists := now.Files[name]; exists == v.missing || is != v.file {
				letters += string(rune('a' + i))
			}
		}
		var longer []string
		for _, o := range out {
			for _, l := range letters {
				longer = append(longer, o+string(l))
			}
		}
		out = longer
	}
	return out
}

func (w *world) cutPower(e event) {
	to := w.capture(w.kernel.now().Wall)
	for i, name := range sortedKeys(w.unsynced) {
		switch letter := e.cut[i]; {
		case letter == asItIs:
		case letter == emptied:
			to.Files[name] = file{Wall: to.Files[name].Wall}
		case w.unsynced[name][letter-'a'].missing:
			delete(to.Files, name)
		default:
			to.Files[name] = w.unsynced[name][letter-'a'].file
		}
	}
	w.restore(to)
}
