package explore

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// interruption is what a killed call leaves, and its last operation.
type interruption struct {
	image
	last diskOperation
}

// interrupted returns what a killed call may leave, the earliest first, without the images before
// its first and after its last operation. They are computed from the images before and after each
// transaction and the order of the file operations between them, which inotify reports; the code
// under test is not changed for it.
func interrupted(before image, records []record) []interruption {
	var out []interruption
	now := before
	for _, r := range records {
		for _, op := range r.ops {
			now = apply(now, op, r.after)
			out = append(out, interruption{now, op})
		}
	}
	return out[:max(len(out)-1, 0)]
}

// attempt runs an event from the current state. Of a call that is killed it returns the operation
// at which that happens; one that makes fewer file operations than e.killed is not killed.
func (w *simulation) attempt(e event) (taken event, out outcome, at diskOperation) {
	from, n := w.current, w.node
	out = w.do(e)
	if e.killed == 0 {
		return e, out, at
	}
	records, kernel := w.records, w.kernel
	left := interrupted(from, w.splitRecords(records, e, from, n))
	if e.killed > len(left) {
		w.restore(from)
		w.node, e.killed = n, 0
		return w.attempt(e)
	}
	w.kill(e, from, n, kernel, left[e.killed-1])
	return e, outcome{}, left[e.killed-1].last
}

// kill makes the state that of a call which was killed: with what it has left, at the time at which
// it would have ended.
func (w *simulation) kill(e event, from image, n node, ended kernel, left interruption) {
	w.restore(left.image)
	w.node, w.kernel = n, ended
	w.noteUnsynced(from, e)
}

// splitRecords divides the records in which a file is written both before the commit and after it,
// so that each file is written once at most in a record, and the images in between are known. It
// runs the event again from the image and the node before it, with a transaction that is not
// committed, which shows what is written before the commit.
func (w *simulation) splitRecords(all []record, e event, from image, n node) (out []record) {
	for i, r := range all {
		commit := 0
		for at, op := range r.ops {
			if op.kind == commits {
				commit = at
			}
		}
		before, after := r.ops[:commit], r.ops[commit:]
		if slices.ContainsFunc(before, func(op diskOperation) bool {
			return op.kind != commits && slices.ContainsFunc(after, func(o diskOperation) bool {
				return o.name == op.name
			})
		}) {
			w.restore(from)
			w.node, w.uncommitted = n, i+1
			w.do(e)
			w.uncommitted = 0
			out, r.ops = append(out, record{before, w.current}), after
		}
		out = append(out, r)
	}
	return out
}

// replaceStore replaces the store's file by a copy in a transaction, which therefore fails when it
// commits, and is repeated. The files are those of the begin of the transaction in each attempt: of
// what the call has done, only a new store and its mark stay.
func (w *simulation) replaceStore() {
	if _, err := os.Stat(w.path(storeFile)); err != nil {
		return // no transaction has begun
	}
	begin := w.current
	if now := w.capture(w.kernel.now().Wall); begin.Store == nil {
		begin = begin.clone()
		begin.Store, begin.Files[markFile] = now.Store, now.Files[markFile]
	}
	w.restore(begin)
	content, err := os.ReadFile(w.path(storeFile))
	must(err)
	must(os.WriteFile(w.path(storeFile)+".new", content, 0o600))
	must(os.Rename(w.path(storeFile)+".new", w.path(storeFile)))
}

// apply returns the image after an operation. A call replaces the content of a file in one write
// (files.Write), so that a file is empty only if it was created.
func apply(now image, op diskOperation, after image) image {
	next := now.clone()
	then, exists := after.Files[op.name]
	switch {
	case op.kind == commits:
		next.Store = after.Store
	case op.kind == removes:
		delete(next.Files, op.name)
	case op.kind == creates:
		next.Files[op.name] = file{Wall: then.Wall}
	case exists: // else it is removed before the next capture
		next.Files[op.name] = then
	}
	return next
}

// versions are the earlier contents that a file may have after a power cut, back to the last sync.
// No program syncs host-local's files; the kernel does within a step of the clock.
type versions map[string][]version

type version struct {
	file
	missing bool
}

// noteUnsynced records which of host-local's files an event has changed.
func (w *simulation) noteUnsynced(before image, e event) {
	switch e.kind {
	case pass, wait, long, reboot, rebootEpoch, powerCut:
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
	maps.Copy(names, w.current.Files)
	for name := range names {
		was, existed := before.Files[name]
		is, exists := w.current.Files[name]
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

// The choices of a power cut, a letter for each file that was not synced: unchanged, empty, or an
// earlier version ('a' is the first).
const (
	unchanged = '='
	emptied   = '0'
)

// cuts returns the choices of all power cuts that may happen in a state.
func (w *simulation) cuts(now image) []string {
	out := []string{""}
	for _, name := range sortedKeys(w.unsynced) {
		letters := string(unchanged)
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

func (w *simulation) cutPower(e event) {
	to := w.capture(w.kernel.now().Wall)
	for i, name := range sortedKeys(w.unsynced) {
		switch letter := e.cut[i]; {
		case letter == unchanged:
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
