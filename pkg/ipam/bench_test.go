package ipam

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// BenchmarkAddDel is the work of an ADD and a DEL without the process around it, with other leases.
func BenchmarkAddDel(b *testing.B) {
	for _, leases := range []int{0, 250, 1000} {
		b.Run(fmt.Sprint(leases), func(b *testing.B) {
			w := newWorld(b, "10.0.0.0/16")
			fill(b, w, leases)
			for i := 0; b.Loop(); i++ {
				addDel(b, w, ask{container: fmt.Sprint("c", i)})
			}
		})
	}
}

// BenchmarkReturn is the same for a retained pod, whose address is held in between.
func BenchmarkReturn(b *testing.B) {
	w := newWorld(b, "10.0.0.0/16")
	for i := 0; b.Loop(); i++ {
		addDel(b, w, ask{pod: "db-0", container: fmt.Sprint("c", i), window: 10 * time.Minute})
	}
}

func addDel(b *testing.B, w *world, a ask) {
	w.add(a)
	if err := w.service.Release(context.Background(), on(a.container, "eth0"), w.where()); err != nil {
		b.Fatal(err)
	}
	delete(w.netns, "/run/netns/"+a.container)
}

func fill(b *testing.B, w *world, leases int) {
	b.Helper()
	for i := range leases {
		w.add(ask{container: fmt.Sprint("other-", i)})
	}
}

// BenchmarkRecreated is the same for a pod whose name was recreated 200 times within softHold, with
// another UID each time.
func BenchmarkRecreated(b *testing.B) {
	w := newWorld(b, "10.0.0.0/16")
	for i := range 200 {
		addDel(b, w, ask{pod: "job", uid: fmt.Sprint("former-", i), container: fmt.Sprint("former-", i)})
	}
	for i := 0; b.Loop(); i++ {
		addDel(b, w, ask{pod: "job", uid: "job", container: fmt.Sprint("c", i)})
	}
}

// BenchmarkRefused is an ADD in a full pool, within 5 s of another one.
func BenchmarkRefused(b *testing.B) {
	w := newWorld(b, "10.0.0.0/19")
	w.add(ask{container: "first"})
	err := w.service.Store.Update(context.Background(), store.Options{}, func(tx *store.Tx) error {
		l := tx.InPool(w.request(ask{}).Pool)[0]
		for l.Address = l.Address.Next(); w.sets[0].Usable(l.Address); l.Address = l.Address.Next() {
			if err := tx.Put(l.Pool, l.Address, l); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	refused := func() {
		if _, err := w.tryAdd(ask{container: "newcomer"}); !errors.Is(err, ErrExhausted) {
			b.Fatal(err)
		}
	}
	refused() // it looks for dead holders
	for b.Loop() {
		refused()
	}
}
