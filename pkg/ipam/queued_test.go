package ipam

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
)

// queued returns the containers whose DELs are queued, the earliest DEL first.
func (w *world) queued() string {
	w.t.Helper()
	records, err := w.service.Node.Store.Run().QueuedDELs(w.now.BootID)
	w.must(err)
	var out []string
	for _, r := range records {
		out = append(out, r.ContainerID)
	}
	return strings.Join(out, " ")
}

// All that reads the store sees the same before DELs are applied as after it, except the journal.
func TestReadersSeeAQueuedDELAsDone(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	for i, window := range []time.Duration{hour, 0, hour, 0} {
		w.add(ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: window})
	}
	w.after(time.Minute)
	w.del("c0")
	w.del("c1")
	read := func() string {
		var out string
		w.view(func(tx *store.Tx) {
			for _, pod := range []string{"db-0", "db-1", "db-2"} {
				leases, err := tx.ByPod("db", pod)
				out += fmt.Sprintf("%+v %v\n", leases, err)
			}
			for i := range 4 {
				leases, err := tx.ByHolder(fmt.Sprint("c", i), "eth0")
				out += fmt.Sprintf("%+v %v\n", leases, err)
			}
			p := w.where().Pool
			out += fmt.Sprintf("%+v\n%+v\n%+v\n", tx.InPool(p), tx.Usage(), tx.Totals())
			for _, wrong := range tx.Check() {
				t.Error(wrong)
			}
		})
		list, err := w.service.List(context.Background(), func(lease.Lease) bool { return true })
		survey, err2 := w.service.Survey(context.Background())
		check := w.another().Verify(context.Background(), w.request(ask{pod: "db-0", container: "c0"}))
		if check == nil {
			t.Error("CHECK of a container that was deleted succeeds")
		}
		return out + fmt.Sprintf("%+v %v\n%+v %+v %v", list.Leases, err, survey.Leases, survey.Life, err2)
	}
	released := w.released
	before := read()
	w.settle()
	if after := read(); before != after || !released {
		t.Errorf("before:\n%s\nafter it:\n%s", before, after)
	}
}

// fails is a DEL that finds the store locked.
func (w *world) fails(container string) {
	w.t.Helper()
	lock, err := files.Lock(w.t.Context(), filepath.Join(w.service.Node.Store.Dirs().Run, "lock"), syscall.LOCK_EX)
	w.must(err)
	defer lock.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Millisecond)
	defer cancel()
	w.must(w.service.Release(ctx, on(container, "eth0"), w.where()))
	w.same("the queue", w.queued(), container)
}

// A node without an agent and without ADDs does not collect DELs without limit.
func TestTheQueueIsRecordedWhenItIsLarge(t *testing.T) {
	w := newWorld(t, "10.0.0.0/16")
	const more = 3
	for i := range 256 + more {
		w.add(ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: hour})
	}
	for i := range 256 {
		w.stop(fmt.Sprint("c", i))
	}
	check.Equal(t, len(strings.Fields(w.queued())), 256, "queued DELs")
	w.stop("c256")
	w.same("one more", w.queued(), "")
	w.stop("c257")
	w.same("the next", w.queued(), "c257")
	check.Equal(t, strings.Count(w.leases(), "Held"), 258, "holds")
}

// queueFiles prints the names of the files in the queue. They are empty.
func (w *world) queueFiles() string {
	w.t.Helper()
	files, err := os.ReadDir(w.service.Node.Store.Run().Queue())
	w.must(err)
	var out []string
	for _, f := range files {
		info, err := f.Info()
		w.must(err)
		check.Equal(w.t, info.Size(), 0, "bytes of", f.Name())
		out = append(out, f.Name())
	}
	return strings.Join(out, " ")
}
