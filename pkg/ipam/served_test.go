package ipam

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// startedByHostLocal makes a sandbox of a pod to which host-local has given an address: its
// namespace, host-local's file and libcni's entry.
func (w *world) startedByHostLocal(pod, container, addr string) {
	w.t.Helper()
	w.unpack(container)
	w.hostLocal(addr, container)
	dir := filepath.Join(filepath.Dir(w.dataDir), "results")
	w.service.CacheDirs = []string{dir}
	entry := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":%q,
		"netns":"/run/netns/%s","cniArgs":[["K8S_POD_NAMESPACE","db"],["K8S_POD_NAME",%q],["K8S_POD_UID","uid-of-%s"]],
		"result":{"ips":[{"address":"%s/24"}]}}`, container, w.network, container, pod, container, addr)
	err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(w.cacheFile(container), []byte(entry), 0o600))
	if err != nil {
		w.t.Fatal(err)
	}
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

// A pod that host-local started keeps its address at its first recreation, although host-local
// serves the DEL, and no ADD of another pod came before.
func TestPodsOfHostLocalKeepTheirAddresses(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.startedByHostLocal("db-0", "c1", "10.0.0.7")
	w.startedByHostLocal("plain", "c2", "10.0.0.8")
	w.asAgent()
	w.expect(w.collect(), "", "leasehold does not serve the network")
	w.expect(w.serve(), "adopt 10.0.0.7, adopt 10.0.0.8", "it does")
	w.follow("uid-of-c1", hour)
	w.same("adopted", w.leases(), "10.0.0.7=db-0/Bound 10.0.0.8=plain/Bound")
	w.same("files", w.files(), "10.0.0.7=c1 10.0.0.8=c2")
	w.expect(w.serve(), "", "again")

	w.stoppedByHostLocal("c1", "10.0.0.7")
	w.service.Node.Plugin = true
	w.same("the next one", w.add(ask{pod: "new", container: "c4"}), "10.0.0.2")
	w.same("recreated before the next survey", w.add(ask{pod: "db-0", container: "c3", silent: true}), "10.0.0.7")
	w.same("files", w.files(), "10.0.0.2=c4 10.0.0.7=c3 10.0.0.8=c2")
}

// host-local serves the DEL of the only pod of a node, before the first ADD. The agent releases the
// lease, and does not write the file again, although no other holder shows that the agent sees the
// holders.
func TestAdoptedPodsThatAllEnd(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.startedByHostLocal("db-0", "c1", "10.0.0.7")
	w.asAgent()
	w.expect(w.serve(), "adopt 10.0.0.7", "leasehold serves the network")
	w.follow("uid-of-c1", hour)
	w.stoppedByHostLocal("c1", "10.0.0.7")
	w.expect(w.serve(), "release 10.0.0.7", "host-local has served the DEL")
	w.same("released", w.leases(), "10.0.0.7=db-0/Firm")
	w.export()
	w.same("files", w.files(), "10.0.0.7=#held:db/db-0:firm")
	w.service.Node.Plugin = true
	w.same("recreated", w.add(ask{pod: "db-0", container: "c3", silent: true}), "10.0.0.7")
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
	w.expect(w.serveSince(info.ModTime().Add(-time.Second)), "", "it is newer than the configuration")
	w.expect(w.serveSince(info.ModTime()), "adopt 10.0.0.7", "it is older")
}

// The same, with a survey between the DEL and the ADD.
func TestHostLocalsDelOfAnAdoptedPodBeginsAHold(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.startedByHostLocal("db-0", "c1", "10.0.0.7")
	w.startedByHostLocal("plain", "c2", "10.0.0.8")
	w.asAgent()
	w.serve()
	w.follow("uid-of-c1", hour)
	w.wipe(w.path("10.0.0.7"))
	w.expect(w.serve(), "mirror 10.0.0.7", "host-local has served the DEL, and the namespace is still there")
	w.same("files", w.files(), "10.0.0.7=c1 10.0.0.8=c2")
	w.wipe(w.path("10.0.0.7"))
	w.stoppedByHostLocal("c1", "10.0.0.7")
	w.expect(w.serve(), "release 10.0.0.7", "and now it is not")
	w.same("held", w.leases(), "10.0.0.7=db-0/Firm 10.0.0.8=plain/Bound")
	w.same("files", w.files(), "10.0.0.7=#held:db/db-0:firm 10.0.0.8=c2")
	w.after(30 * time.Minute)
	w.service.Node.Plugin = true
	w.same("recreated", w.add(ask{pod: "db-0", container: "c3", silent: true}), "10.0.0.7")
}

// While another configuration was in use, host-local gave addresses of a pool that the store knows.
func TestPodsThatHostLocalStartedMeanwhile(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1", window: hour})
	w.startedByHostLocal("db-0", "c2", "10.0.0.7")
	w.expect(w.collect(), "", "leasehold does not serve the network")
	w.expect(w.serve(), "adopt 10.0.0.7", "it does")
	w.follow("uid-of-c2", hour)
	w.stoppedByHostLocal("c2", "10.0.0.7")
	w.same("recreated", w.add(ask{pod: "db-0", container: "c3", silent: true}), "10.0.0.7")
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
		w.expect(w.serve(), "", what)
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

// The marks of holds in the directory of a pool that the store does not know yet are holds.
func TestAdoptionByTheAgentKeepsHolds(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "held", container: "c0", window: hour})
	w.stop("c0")
	w.wipe(w.stateDir(), w.service.Store.Dirs().Run)
	w.startedByHostLocal("db-0", "c1", "10.0.0.7")
	w.asAgent()
	w.expect(w.serve(), "adopt 10.0.0.7", "a store that was removed before the boot")
	w.same("adopted", w.leases(), "10.0.0.2=held/Firm 10.0.0.7=db-0/Bound")
	w.service.Node.Plugin = true
	w.same("the held one", w.add(ask{pod: "held", container: "c2", window: hour}), "10.0.0.2")
}

// After a loss the first ADD or an operator decides what the pool had.
func TestTheAgentAdoptsNoLostPool(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1", window: hour})
	w.wipe(w.stateDir())
	err := w.service.Release(context.Background(), lease.Attachment{ContainerID: "x", IfName: "eth0"}, PoolHint{})
	if err != nil {
		t.Fatal(err)
	}
	w.startedByHostLocal("db-0", "c2", "10.0.0.7")
	w.asAgent()
	w.expect(w.serve(), "", "lost")
}

// A pod that host-local gave another address while its former one was held returns to the last one.
func TestThePodReturnsToItsLastAddress(t *testing.T) {
	for _, addr := range []string{"10.0.0.7", "10.0.0.2"} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(ask{pod: "db-0", container: "c1", window: hour, requested: "10.0.0.5"})
		w.stop("c1")
		w.after(time.Minute)
		w.startedByHostLocal("db-0", "c2", addr)
		w.serve()
		w.follow("uid-of-c2", hour)
		w.stoppedByHostLocal("c2", addr)
		w.same("recreated", w.add(ask{pod: "db-0", container: "c3", silent: true}), addr)
		w.same("the former one is free", w.leases(), addr+"=db-0/Bound")
		if want := "Revoked db-0: the pod has had another address since"; !slices.Contains(w.journal(), want) {
			t.Errorf("journal %q, want %q", w.journal(), want)
		}
		if len(w.warned) > 0 {
			t.Logf("warned: %q", w.warned)
		}
	}
}
