package ipam

import (
	"context"
	"errors"

	"net/netip"

	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
)

func anyLease(lease.Lease) bool { return true }

// elsewhere moves the caller into a container: it finds no namespace and no
// process of the node. The returned function moves it back.
func (w *world) elsewhere() (home func()) {
	netns, inPID := w.netns, w.inPID
	w.netns, w.inPID, w.spaces = map[string]uint64{}, map[uint64]bool{}, " elsewhere"
	w.service.Node.Plugin = false
	return func() {
		w.netns, w.inPID, w.spaces = netns, inPID, ""
		w.service.Node.Plugin = true
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
			_, _, err := w.service.Import(ctx, w.where().Pool)
			return err
		},
		"export": func(w *world) error {
			_, err := w.service.Export(ctx)
			return err
		},
		"spec.release": func(w *world) error {
			_, err := w.service.RevokePods(ctx, [][]maintain.Ref{w.refs("living"), w.refs("db-0")}, "spec.release")
			return err
		},
		"the end of a hold": func(w *world) error {
			_, err := w.service.EndHolds(ctx, [][]maintain.Ref{w.refs("db-0")}, "moved")
			return err
		},
		"the import of a file": func(w *world) error {
			l := lease.Lease{Pool: w.where().Pool, Address: netip.MustParseAddr("10.0.0.3")}
			_, err := w.service.Act(ctx, []maintain.Action{{Do: maintain.Import, Lease: l}})
			return err
		},
		"a change that finds a damaged record": func(w *world) error {
			spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "living")
			_, err := w.service.Follow(ctx, []maintain.PodWindow{{Namespace: "db", Name: "living",
				SetWindow: lease.SetWindow{UID: "uid-of-c1", Window: lease.Window(time.Minute)}}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
			w.add(ask{pod: "living", container: "c1"})
			w.add(ask{pod: "db-0", container: "c2", window: hour})
			w.del("c2")
			w.options.CoolDown = time.Second
			home := w.elsewhere()
			if err := command(w); !errors.Is(err, operation.ErrNoHostView) {
				t.Errorf("got error %v, want operation.ErrNoHostView", err)
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

// has puts an address on the interface of a sandbox.
func (w *world) has(container, addr string) {
	path := netnsPath(container)
	w.addrs[path] = append(w.addrs[path], netip.MustParseAddr(addr))
}
