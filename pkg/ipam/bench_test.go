package ipam

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/must"
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
	must.Succeed(b, w.service.Release(context.Background(), on(a.container, "eth0"), w.where()))
	delete(w.netns, "/run/netns/"+a.container)
}

func fill(b *testing.B, w *world, leases int) {
	b.Helper()
	for i := range leases {
		w.add(ask{container: fmt.Sprint("other-", i)})
	}
}
