package operation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestSteps imports the files of a network in many transactions. After each of them another call
// gets the store's lock at once, and finds some more of the leases, each of which is imported once.
// DELs that were queued before it are of containers of the first transaction and of the last one. A
// source that cannot be read is warned about once.
func TestSteps(t *testing.T) {
	before := stepsTime
	stepsTime = 0
	t.Cleanup(func() { stepsTime = before })
	const files = 4*fewSteps + 7
	dir, now := t.TempDir(), lease.Instant{Wall: time.Now().Add(time.Hour), Boot: time.Hour, BootID: "boot-1"}
	p := lease.Pool{DataDir: filepath.Join(dir, "networks"), Network: "cbr0"}
	r, err := pool.NewRange(netip.MustParsePrefix("10.0.0.0/16"), netip.Addr{}, netip.Addr{}, netip.Addr{})
	if err == nil {
		err = os.MkdirAll(hostlocal.Path(p), 0o755)
	}
	addr := r.Start
	for i := range files {
		if err == nil {
			path := filepath.Join(hostlocal.Path(p), addr.String())
			err = os.WriteFile(path, fmt.Appendf(nil, "c%d\r\neth0", i), 0o600)
		}
		addr = addr.Next()
	}
	must.Succeed(t, err)
	n := newNode(dir, lease.Unknown, &now)
	last := fmt.Sprint("c", files-1)
	for _, id := range []string{"c0", last} {
		must.Succeed(t, n.Store.Run().AddDEL(lease.Attachment{ContainerID: id, IfName: "eth0"}, p, now))
	}
	now.Wall, now.Boot = now.Wall.Add(time.Second), now.Boot+time.Second
	fork := filepath.Join(p.DataDir, "reserved", "db")
	must.Succeed(t, errors.Join(os.MkdirAll(fork, 0o755), os.WriteFile(filepath.Join(fork, "db-0"), nil, 0o600)))
	warned := 0
	n.Warn = func(string) { warned++ }
	var known []int
	timed := func(time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := store.New(n.Store.Dirs()).Update(ctx, func(tx *store.Tx) error {
			known = append(known, len(tx.InPool(p)))
			return tx.Count("others", 1)
		})
		must.Succeed(t, err, "a call of another network")
	}
	n.Store.Timed = timed
	err = n.Update(t.Context(), Scope{Pool: p, Sets: []pool.Set{{r}}}, func(*Call) error { return nil })
	must.Succeed(t, err)
	// The first transaction has the sources read, and the last one applies the DELs.
	want := []int{0, 100, 200, 300, 400, files, files - 2}
	check.Slices(t, known, want, "leases after each transaction")
	check.Equal(t, warned, 1, "warnings")
	n.Store.Timed = nil
	err = n.Store.View(t.Context(), func(tx *store.Tx) error {
		imported := 0
		for _, e := range tx.Entries(0) {
			if e.Event == store.EventImported {
				imported++
			}
		}
		if imported != files || !tx.Imported(p) {
			t.Errorf("%d addresses were imported, want %d; known: %v", imported, files, tx.Imported(p))
		}
		for _, l := range tx.InPool(p) {
			if id := l.Holder.ContainerID; l.State == lease.Bound && (id == "c0" || id == last) {
				t.Errorf("%s is bound to container %s after its DEL", l.Address, id)
			}
		}
		return nil
	})
	must.Succeed(t, err)

	// The next boot ends all of them in as many.
	n.Host, now.BootID = lifeHost{host.New("/proc", host.DefaultBootIDFile), lease.Dead}, "boot-2"
	known, n.Store.Timed = nil, timed
	must.Succeed(t, n.Update(t.Context(), Scope{Pool: p}, func(c *Call) error { return c.NewBoot(p) }))
	check.Slices(t, known, []int{304, 203, 102, 1, 0}, "leases after each transaction of a boot")
}
