package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// lockedFor returns the shortest time for which a call of fn held the store's lock, of ten.
func lockedFor(fn func(context.Context)) time.Duration {
	least := time.Hour
	for range 10 {
		var held time.Duration
		fn(store.WithTiming(context.Background(), func(t store.Timing) { held += t.Held }))
		least = min(least, held)
	}
	return least
}

// manyFiles makes files of host-local's in the first n addresses from 10.0.0.2 on.
func (w *world) manyFiles(n int) {
	w.t.Helper()
	dir := filepath.Join(w.dataDir, w.network)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	addr := netip.MustParseAddr("10.0.0.2")
	for i := range n {
		content := fmt.Sprintf("container-%d\r\neth0", i)
		if err := os.WriteFile(filepath.Join(dir, addr.String()), []byte(content), 0o600); err != nil {
			w.t.Fatal(err)
		}
		addr = addr.Next()
	}
}

// TestALateDelReadsNoFilesUnderTheLock verifies that a DEL and a CHECK of a container that nobody
// knows hold the lock for a time that does not grow with the number of host-local's files.
func TestALateDelReadsNoFilesUnderTheLock(t *testing.T) {
	held := map[string][2]time.Duration{}
	for i, files := range []int{8, 2000} {
		w := newWorld(t, "10.0.0.0/16")
		w.manyFiles(files)
		w.add(ask{container: "new"})
		late := lease.Attachment{ContainerID: "late", IfName: "eth0"}
		for verb, call := range map[string]func(context.Context) error{
			"DEL": func(ctx context.Context) error { return w.service.Release(ctx, late, w.where()) },
			"CHECK": func(ctx context.Context) error {
				return w.service.Verify(ctx, w.request(ask{container: "late"}))
			},
		} {
			times := held[verb]
			times[i] = lockedFor(func(ctx context.Context) {
				if err := call(ctx); err != nil && !errors.Is(err, ErrCheckFailed) {
					t.Fatalf("%s: %v", verb, err)
				}
			})
			held[verb] = times
		}
	}
	for verb, times := range held {
		t.Logf("%s: the lock was held for %s with 8 files, for %s with 2,000", verb, times[0], times[1])
		if times[1] > 4*times[0]+4*time.Millisecond {
			t.Errorf("%s holds the lock for %s with 8 files, for %s with 2,000", verb, times[0], times[1])
		}
	}
}

// TestAdoptionOfManyFiles verifies that the cost of the first ADD on a node that host-local has
// served does not grow with the product of its files and the entries of the journal.
func TestAdoptionOfManyFiles(t *testing.T) {
	w := newWorld(t, "10.0.0.0/16")
	w.manyFiles(4000)
	began := processorTime(t)
	w.add(ask{container: "new"})
	if took := processorTime(t) - began; took > 3*time.Second {
		t.Errorf("4,000 files were adopted in %s of processor time", took)
	}
}

// processorTime returns the processor time of this process, which does not depend on the load of
// the machine.
func processorTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
