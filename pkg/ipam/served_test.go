package ipam

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
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
	plan := w.remember(time.Now().Add(time.Hour))
	_, err := w.service.Act(context.Background(), w.remembered)
	w.must(err)
	return plan
}

// remember is serve, but for the actions: those are performed later. The configuration was changed
// at the time since.
func (w *world) remember(since time.Time) string {
	w.t.Helper()
	_ = w.service.ApplyQueue(context.Background())
	v, err := w.service.Survey(context.Background(),
		maintain.Served{Scope: operation.Existing(w.where().Pool, w.sets), Since: since})
	w.must(errors.Join(err, v.Unsafe))
	w.remembered = maintain.Plan(v)
	return actionsOf(w.remembered)
}

// asAgent makes the world one in which no plugin has run and the agent's view is the machine's.
func (w *world) asAgent() {
	w.service.Node.Plugin, w.first = false, true
}
