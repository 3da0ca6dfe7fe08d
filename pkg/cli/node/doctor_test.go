package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestLostStore examines a store that was lost, before and after its leases are known again.
// leasectl recover does not know the ranges of a network, so that the network is not marked as
// imported before the next ADD.
func TestLostStore(t *testing.T) {
	dir := t.TempDir()
	dirs := store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}
	a := &app{Dirs: dirs, Host: host.New("/proc", host.DefaultBootIDFile)}
	s := a.store()
	now := lease.Instant{Wall: time.Now(), Boot: time.Hour, BootID: "boot-1"}
	l, err := lease.Apply(lease.Lease{}, lease.Bind{Lease: lease.Lease{
		ID: "00112233445566aa", Pool: lease.Pool{DataDir: dir, Network: "cbr0"},
		Address: netip.MustParseAddr("10.0.0.2"), Set: "s", Namespace: "db", Name: "db-0", UID: "u1",
		CoolDown: time.Minute, Holder: lease.Holder{ContainerID: "c1", IfName: "eth0", BootID: "boot-1"},
	}}, now)
	must.Succeed(t, err)
	put := func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) }
	log := func(tx *store.Tx) error { return tx.Log(store.Entry{Time: now.Wall, Event: store.EventRefused}) }
	for _, step := range []struct {
		name string
		do   func(*store.Tx) error // nil: the file is removed
		want string
	}{
		{"a lease", put, ""},
		{"lost", nil, "StoreLost"},
		{"another call, which imports nothing", log, "StoreIncomplete"},
		{"recovered", put, ""},
	} {
		if step.do == nil {
			err = os.Remove(filepath.Join(dirs.State, "leases.db"))
		} else {
			err = s.Update(t.Context(), step.do)
		}
		must.Succeed(t, err, step.name)
		n := &nodeDoctor{app: a, Report: cli.NewReport(), state: a.content(t.Context())}
		n.checkStore(t.Context())
		reason := ""
		for _, f := range n.Findings {
			reason += f.Reason
		}
		check.Empty(t, n.Unchecked, step.name)
		check.Equal(t, reason, step.want, step.name, n.Report)
	}
	must.Succeed(t, s.View(t.Context(), func(tx *store.Tx) error {
		check.Empty(t, tx.Check())
		return nil
	}))
}
