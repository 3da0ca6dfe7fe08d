package ipam

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// startedByHostLocal makes a sandbox of a pod to which host-local has given an address: its
// namespace, host-local's file and libcni's entry.
func (w *world) startedByHostLocal(pod, container, addr string) {
	w.t.Helper()
	w.unpack(container)
	w.hostLocal(addr, container)
	w.cached(container, addr, pod)
}

func (w *world) cacheFile(container string) string {
	return filepath.Join(filepath.Dir(w.dataDir), "results", w.network+"-"+container+"-eth0")
}

// stoppedByHostLocal is what a runtime does whose plugin has stored the configuration of the ADD:
// host-local serves the DEL.
func (w *world) stoppedByHostLocal(container, addr string) {
	w.t.Helper()
	w.wipe(w.path(addr), w.cacheFile(container))
	w.burn(container)
}

// serve is a round of an agent on a node whose configuration has been changed to leasehold after
// all files were written. It returns the plan.
func (w *world) serve() string {
	w.t.Helper()
	return w.serveSince(time.Now().Add(time.Hour))
}

// serveSince is serve with the time at which the configuration was changed.
func (w *world) serveSince(since time.Time) string {
	w.t.Helper()
	_ = w.service.Replay(context.Background())
	v, err := w.service.Survey(context.Background(), maintain.Served{Pool: w.where().Pool, Since: since})
	if err == nil {
		err = v.Unsafe
	}
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, a := range maintain.Plan(v) {
		out = append(out, fmt.Sprint(a.Do, " ", a.Lease.Address))
	}
	if _, err := w.service.Act(context.Background(), maintain.Plan(v)); err != nil {
		w.t.Fatal(err)
	}
	return strings.Join(out, ", ")
}

// asAgent makes the world one in which no plugin has run and the agent's view is the machine's.
func (w *world) asAgent() {
	w.service.Node.Plugin, w.first = false, true
}

// What host-local gives under a configuration that leads to leasehold shows that the runtime does
// not use it. The agent reports that for pods that have no lease.
func TestWhatHostLocalGivesLaterIsNotAdopted(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.startedByHostLocal("db-0", "c1", "10.0.0.7")
	w.asAgent()
	info, err := os.Stat(w.path("10.0.0.7"))
	if err != nil {
		t.Fatal(err)
	}
	w.same("it is newer than the configuration", w.serveSince(info.ModTime().Add(-time.Second)), "")
	w.same("it is older", w.serveSince(info.ModTime()), "adopt 10.0.0.7")
}

// Only the file of a living container makes the agent adopt a pool.
func TestWhatTheAgentLeavesToTheFirstAdd(t *testing.T) {
	for what, harm := range map[string]func(w *world){
		"the namespace is gone":                 func(w *world) { w.burn("c1") },
		"libcni's entry is gone":                func(w *world) { w.wipe(w.cacheFile("c1")) },
		"libcni's entry has another address":    func(w *world) { w.cached("c1", "10.0.0.9") },
		"the file names another container":      func(w *world) { w.rewrite("c9") },
		"there is no file":                      func(w *world) { w.wipe(w.path("10.0.0.7")) },
		"there is no directory":                 func(w *world) { w.wipe(w.dataDir) },
		"the view is not proven":                func(w *world) { w.first = false },
		"libcni's entry cannot be read":         func(w *world) { w.makeDir(w.cacheFile("c1")) },
		"the file cannot be read":               func(w *world) { w.makeDir(w.path("10.0.0.7")) },
		"the file is empty, after a power loss": func(w *world) { w.rewrite("") },
	} {
		w := newWorld(t, "10.0.0.0/24")
		w.startedByHostLocal("db-0", "c1", "10.0.0.7")
		w.asAgent()
		harm(w)
		w.same(what, w.serve(), "")
		w.same(what, w.leases(), "")
		if _, err := os.Stat(w.stateDir()); !errors.Is(err, os.ErrNotExist) {
			w.view(func(tx *store.Tx) { t.Errorf("%s: a store with %d pools", what, len(tx.Pools())) })
		}
	}
}

// rewrite writes host-local's file of 10.0.0.7 again, with another container.
func (w *world) rewrite(container string) {
	w.wipe(w.path("10.0.0.7"))
	w.hostLocal("10.0.0.7", container)
}

// makeDir puts a directory in the place of a file, which nobody can read then.
func (w *world) makeDir(path string) {
	w.t.Helper()
	w.wipe(path)
	if err := os.Mkdir(path, 0o755); err != nil {
		w.t.Fatal(err)
	}
}

// After a loss the first ADD or an operator decides what the pool had.
func TestTheAgentAdoptsNoLostPool(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1", window: hour})
	w.wipe(w.stateDir())
	err := w.service.Release(context.Background(), lease.Attachment{ContainerID: "x", IfName: "eth0"}, transact.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	w.startedByHostLocal("db-0", "c2", "10.0.0.7")
	w.asAgent()
	w.same("lost", w.serve(), "")
}
