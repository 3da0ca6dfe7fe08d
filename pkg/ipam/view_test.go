package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

func anyLease(lease.Lease) bool { return true }

func anyPool(lease.Pool) bool { return true }

// elsewhere moves the caller into a container: it finds no namespace and no
// process of the node. The returned function moves it back.
func (w *world) elsewhere() (home func()) {
	netns, inPID := w.netns, w.inPID
	w.netns, w.inPID, w.spaces = map[string]uint64{}, map[uint64]bool{}, " elsewhere"
	w.service.Plugin = false
	return func() {
		w.netns, w.inPID, w.spaces = netns, inPID, ""
		w.service.Plugin = true
	}
}

// From where the node's sandboxes cannot be seen each of them looks dead, so no command
// may change a lease by what it sees.
func TestNoCommandActsOnAnUnprovenView(t *testing.T) {
	ctx := context.Background()
	for name, command := range map[string]func(w *world) error{
		"release": func(w *world) error {
			_, err := w.service.Revoke(ctx, anyLease, false, "by hand")
			return err
		},
		"import": func(w *world) error {
			_, _, err := w.service.Import(ctx, w.where().Pool, w.sets)
			return err
		},
		"export": func(w *world) error {
			_, err := w.service.Export(ctx, anyPool)
			return err
		},
		"the adoption of a file": func(w *world) error {
			l := lease.Lease{Pool: w.where().Pool, Address: netip.MustParseAddr("10.0.0.3")}
			_, err := w.service.Act(ctx, []maintain.Action{{Do: maintain.Adopt, Lease: l}})
			return err
		},
		"a change that finds a damaged record": func(w *world) error {
			spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "living")
			return w.service.Follow(ctx, []maintain.PodWindow{{Namespace: "db", Name: "living", UID: "uid-of-c1",
				Window: lease.Window(time.Minute)}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
			w.add(ask{pod: "living", container: "c1"})
			w.add(ask{pod: "db-0", container: "c2", window: hour})
			w.del("c2")
			w.options.SoftHold = time.Second
			home := w.elsewhere()
			if err := command(w); !errors.Is(err, transact.ErrNoHostView) {
				t.Errorf("got error %v, want transact.ErrNoHostView", err)
			}
			home()
			w.after(time.Minute)
			w.refused(ask{pod: "x", container: "c3"}, ErrExhausted)
		})
	}
}

// What no evidence decides works from everywhere: --force is the operator's word about
// the holder, and --accept-loss about the addresses.
func TestTheOperatorsWordNeedsNoView(t *testing.T) {
	ctx := context.Background()
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	home := w.elsewhere()
	if done, err := w.service.Revoke(ctx, anyLease, true, "by hand"); err != nil || len(done) != 1 ||
		done[0].Err != nil {
		t.Errorf("forced: %+v, %v", done, err)
	}
	w.same("leases", w.leases(), "")
	if said := strings.Join(w.warned, "\n"); !strings.Contains(said, "without evidence") {
		t.Errorf("the message is %q", said)
	}
	if done, err := w.service.Revoke(ctx, anyLease, false, "by hand"); err != nil || len(done) != 0 {
		t.Errorf("nothing to release: %+v, %v", done, err)
	}
	w.wipe(w.stateDir(), w.dataDir)
	if err := w.service.AcceptLoss(ctx); err != nil {
		t.Error(err)
	}
	home()
}

// A store that was made again from where a living sandbox could not be seen has a hold
// for it. The node's next ADD sees the sandbox.
func TestALivingSandboxOutweighsAHoldOfItsContainer(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.options.SoftHold = time.Second
	w.add(ask{pod: "living", container: "c1"})
	w.has("c1", "10.0.0.2")
	w.cacheEntry("c1", "living", "10.0.0.2", "/run/netns/c1")
	w.wipe(w.stateDir(), w.dataDir)
	home := w.elsewhere()
	w.service.Plugin = true // as every process could act before it had to prove its view
	w.first = true
	where := w.where()
	where.Sets = nil // as leasectl does
	if _, _, err := w.service.Import(context.Background(), where.Pool, where.Sets); err != nil {
		t.Fatal(err)
	}
	w.same("taken for dead", w.leases(), "10.0.0.2=living/Held")
	home()
	w.after(10 * time.Minute)
	w.same("the next pod", w.add(ask{pod: "x", container: "c2"}), "10.0.0.3")
	w.same("leases", w.leases(), "10.0.0.2=living/Bound 10.0.0.3=x/Bound")
}

// has puts an address on the interface of a sandbox.
func (w *world) has(container, addr string) {
	path := netnsPath(container)
	w.addrs[path] = append(w.addrs[path], netip.MustParseAddr(addr))
}

// cacheEntry is what libcni keeps of an attachment until its DEL.
func (w *world) cacheEntry(container, pod, addr, path string) {
	w.t.Helper()
	dir := w.t.TempDir()
	w.service.CacheDirs = append(w.service.CacheDirs, dir)
	text := fmt.Sprintf(`{"kind": "cniCacheV1", "networkName": %q, "containerId": %q, "ifName": "eth0", "netns": %q,
		"cniArgs": [["K8S_POD_NAMESPACE", "db"], ["K8S_POD_NAME", %q]], "result": {"ips": [{"address": "%s/24"}]}}`,
		w.network, container, path, pod, addr)
	if err := os.WriteFile(filepath.Join(dir, w.network+"-"+container+"-eth0"), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}
