package ipam

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/test/must"
)

// startedByHostLocal makes a sandbox of a pod to which host-local has given an address: its
// namespace, host-local's file and libcni's entry.
func (w *world) startedByHostLocal(pod, container, addr string) {
	w.t.Helper()
	w.unpack(container)
	for a := range strings.SplitSeq(addr, ",") {
		w.hostLocal(a, container)
	}
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
	_ = w.service.ApplyQueue(context.Background())
	v, err := w.service.Survey(context.Background(),
		maintain.Served{Scope: operation.Existing(w.where().Pool, w.sets), Since: since})
	if err == nil {
		err = v.Unsafe
	}
	w.must(err)
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
func TestWhatHostLocalGivesLaterIsNotImported(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.startedByHostLocal("db-0", "c1", "10.0.0.7")
	w.asAgent()
	info, err := os.Stat(w.path("10.0.0.7"))
	must.Succeed(t, err)
	w.same("it is newer than the configuration", w.serveSince(info.ModTime().Add(-time.Second)), "")
	w.same("it is older", w.serveSince(info.ModTime()), "import 10.0.0.7")
}

// TestAContainerThatHasMovedIsNotImported has the agent act on a survey in which libcni's entry of
// a container named another address than it does by then.
func TestAContainerThatHasMovedIsNotImported(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "x", container: "x"})
	w.hostLocal("10.0.0.3", "c9")
	w.add(ask{pod: "y", container: "y"})
	w.unpack("c9")
	w.cached("c9", "10.0.0.3", "db-0", "60")
	w.asAgent()
	served := maintain.Served{Scope: operation.Existing(w.where().Pool, w.sets), Since: time.Now().Add(time.Hour)}
	v, err := w.service.Survey(t.Context(), served)
	must.Succeed(t, err)
	plan := maintain.Plan(v)
	if len(plan) != 1 || plan[0].Do != maintain.Import {
		t.Fatalf("planned %+v", plan)
	}
	w.wipe(w.cacheFile("c9"))
	w.cached("c9", "10.0.0.9", "db-0", "60")
	if _, err := w.service.Act(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	w.burn("c9")
	w.same("the plan once its namespace is gone", w.plan(), "")
}
