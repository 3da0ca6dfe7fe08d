package ipam

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

const syncedEnv = "LEASEHOLD_TEST_SYNCED"

// answers are operations, in order, and whether what they change has to be on the disk before they
// answer. docs/design.md, "What has to be on the disk", has the reasons.
var answers = []struct {
	name   string
	synced bool
	do     func(w *world)
}{
	{"ADD with a window", true, func(w *world) { w.add(ask{pod: "db-0", uid: "u", container: "c1", window: hour}) }},
	{"ADD without a window", true, func(w *world) { w.add(ask{pod: "web", uid: "w", container: "w1"}) }},
	{"DEL with a window", false, func(w *world) { w.stop("c1") }},
	{"DEL without a window", false, func(w *world) { w.stop("w1") }},
	{"claim", true, func(w *world) {
		w.same("the address", w.add(ask{pod: "db-0", uid: "u", container: "c2", window: hour}), "10.0.0.2")
	}},
	{"window changed", true, func(w *world) { w.follow("u", 2*hour) }},
	{"window removed", true, func(w *world) { w.follow("u", 0) }},
	{"window set again", true, func(w *world) { w.follow("u", hour) }},
	{"retention of a bound lease ended", true, func(w *world) {
		w.must(w.revokePods(context.Background(), w.leaseOf("db-0")))
	}},
	{"ADD of a second pod", true, func(w *world) { w.add(ask{pod: "db-1", container: "c3", window: hour}) }},
	{"DEL of a second pod", false, func(w *world) { w.stop("c3") }},
	{"hold released by hand", true, func(w *world) {
		of := func(l lease.Lease) bool { return l.Name == "db-1" }
		if done, err := w.service.Revoke(context.Background(), of, false, "by hand"); err != nil || len(done) != 1 {
			w.t.Fatal(done, err)
		}
	}},
	{"ADD of a third pod", true, func(w *world) { w.add(ask{pod: "db-2", container: "c4", window: hour}) }},
	{"DEL of a third pod", false, func(w *world) { w.stop("c4") }},
	{"hold of a pod that runs elsewhere ended", true, func(w *world) {
		refs := []maintain.Ref{maintain.RefTo(w.leaseOf("db-2"))}
		_, err := w.service.EndHolds(context.Background(), [][]maintain.Ref{refs}, "moved")
		must.Succeed(w.t, err)
	}},
	{"limits", true, func(w *world) { w.setLimits(map[string]string{"db.maxHeld": "1"}) }},
	{"ADD of a limited pod", true, func(w *world) { w.add(ask{pod: "db-3", container: "c5", window: hour}) }},
	{"DEL of a limited pod", true, func(w *world) { w.stop("c5") }},
}

// What a power cut must not undo is on the disk before an operation answers: after its last write
// to the store there is a sync. A DEL that is only queued writes nothing to the store, and syncs
// nothing.
func TestOnTheDiskBeforeTheAnswer(t *testing.T) {
	if dir := os.Getenv(syncedEnv); dir != "" {
		w := newWorld(t, "10.0.0.0/24")
		for _, a := range answers {
			a.do(w)
			must.Succeed(t, os.WriteFile(filepath.Join(dir, "answer"), []byte(a.name), 0o600))
		}
		return
	}
	dir, trace := t.TempDir(), filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command("strace", "-f", "-y", "-o", trace, "-e", "signal=none",
		"-e", "trace=write,pwrite64,writev,ftruncate,fsync,fdatasync", os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), syncedEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	must.Succeed(t, err, string(out))
	lines := must.Read(t, trace)
	answer, written, unsynced, syncs := 0, 0, false, 0
	for line := range strings.Lines(string(lines)) {
		m := tracedCall.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		call, path := m[1], m[2]
		switch sync := call == "fsync" || call == "fdatasync"; {
		case path == filepath.Join(dir, "answer"):
			a := answers[answer]
			switch {
			case a.synced && (written == 0 || unsynced):
				t.Errorf("%s: %d writes to the store, not synced before the answer: %v", a.name, written, unsynced)
			case !a.synced && (written > 0 || syncs > 0):
				t.Errorf("%s: %d writes to the store and %d syncs, want none", a.name, written, syncs)
			}
			answer, written, unsynced, syncs = answer+1, 0, false, 0
		case sync && filepath.Base(path) == "leases.db":
			unsynced = false
			syncs++
		case sync:
			syncs++
		case filepath.Base(path) == "leases.db":
			written++
			unsynced = true
		}
	}
	check.Equal(t, answer, len(answers), "answers in the trace; does strace work?")
}

// A line of strace -y: the name of the call, and the path of its file.
var tracedCall = regexp.MustCompile(`^\d+ +(\w+)\(\d+<(/[^>]*)>`)
