package ipam

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestANamespaceMadeAnewAtThePath verifies that a sandbox whose namespace was removed and made
// again, at the same path and with the same number, counts as gone: `ip netns del x; ip netns add
// x` does that. What shows it is the ADD of another container for the same interface of the
// namespace.
func TestANamespaceMadeAnewAtThePath(t *testing.T) {
	const path = "/run/netns/x"
	// start makes a world whose pod db-0 has an address in a namespace that was made anew since.
	start := func(t *testing.T) *world {
		w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
		w.netns[path] = 100
		w.same("before", w.add(ask{pod: "db-0", container: "c1", netns: path, window: hour}), "10.0.0.2")
		w.plugged[path] = nil
		w.after(time.Minute)
		return w
	}
	again := ask{pod: "db-0", container: "c2", uid: "u2", netns: path, window: hour}

	t.Run("its pod comes back", func(t *testing.T) {
		w := start(t)
		w.same("after", w.add(again), "10.0.0.2")
		w.del("c1")
		w.same("after a late DEL", w.leases(), "10.0.0.2=db-0/Bound")
	})
	t.Run("its pod comes back and the store was lost", func(t *testing.T) {
		w := start(t)
		dir := t.TempDir()
		w.service.CacheDirs = []string{dir}
		entry := `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"cbr0","netns":"` + path + `",
			"cniArgs":[["K8S_POD_NAMESPACE","db"],["K8S_POD_NAME","db-0"],["K8S_POD_UID","u1"]],
			"capabilityArgs":{"io.kubernetes.cri.pod-annotations":{"io.kubernetes.cri/reserved-ip-duration":"60"}},
			"result":{"ips":[{"address":"10.0.0.2/24"}]}}`
		if err := os.WriteFile(filepath.Join(dir, "cbr0-c1-eth0"), []byte(entry), 0o600); err != nil {
			t.Fatal(err)
		}
		w.wipe(w.stateDir(), w.dataDir)
		w.netns[path] = 200
		w.same("after", w.add(again), "10.0.0.2")
	})
	t.Run("another pod gets the namespace", func(t *testing.T) {
		w := start(t)
		w.add(ask{pod: "web", container: "c3", netns: path})
		w.after(time.Minute)
		w.same("by the agent", w.collect(), "release 10.0.0.2")
		w.same("after", w.leases(), "10.0.0.2=db-0/Firm 10.0.0.3=web/Bound")
	})
	t.Run("another pod gets the namespace, and its pod comes back", func(t *testing.T) {
		w := start(t)
		w.add(ask{pod: "web", container: "c3", netns: path})
		w.same("after", w.add(ask{pod: "db-0", container: "c2", uid: "u2", window: hour}), "10.0.0.2")
	})
	for name, harm := range map[string]func(*world){
		"it has the address":            func(w *world) { w.plug(path, netip.MustParseAddr("10.0.0.2")) },
		"no address is on an interface": func(w *world) { w.plugged[path] = nil },
		"it cannot be entered":          func(w *world) { w.closed = map[string]bool{path: true} },
	} {
		t.Run("another pod gets the namespace, and "+name, func(t *testing.T) {
			w := start(t)
			w.add(ask{pod: "web", container: "c3", netns: path})
			harm(w)
			w.same("nothing is proven", w.plan(), "")
			w.refused(ask{pod: "db-0", container: "c2", uid: "u2", window: hour}, ErrAddressInUse, "still there")
		})
	}
	t.Run("another interface of the namespace", func(t *testing.T) {
		w := start(t)
		w.add(ask{pod: "db-0", container: "c2", uid: "u2", netns: path, ifName: "net1", window: hour})
		w.same("both", w.leases(), "10.0.0.2=db-0/Bound 10.0.0.3=db-0/Bound")
		w.same("nothing is proven", w.plan(), "")
	})
}
