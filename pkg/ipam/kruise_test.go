package ipam

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// usedAgainByKruise makes what the Kruise fork leaves after it gave the held address 10.0.0.4 of
// db-0 to the pod's next container, c2: only the reservation names c2, and host-local's file names
// c1, which is gone.
func usedAgainByKruise(t *testing.T) *world {
	w := newWorld(t, "10.0.0.0/24 10.0.0.4-10.0.0.4")
	w.hostLocal("10.0.0.4", "c1")
	w.reservedByKruise("10.0.0.4", "db-0", "c2")
	w.unpack("c2")
	w.has("c2", "10.0.0.4")
	return w
}

// reservedByKruise writes a reservation of the Kruise fork.
func (w *world) reservedByKruise(addr, pod, container string) {
	tree := filepath.Join(w.dataDir, "reserved", "db")
	w.must(os.MkdirAll(tree, 0o755))
	w.must(os.WriteFile(filepath.Join(tree, pod), fmt.Appendf(nil, `{"containerId":%q,"ifName":"eth0",`+
		`"IPConf":{"address":"%s/24","gateway":"10.0.0.1"},"duration":60}`, container, addr), 0o644))
}

// Whatever the first call of the network is, the address belongs to the container that has it on an
// interface, and its DEL holds it for the pod.
func TestAReservationOfKruiseThatWasUsedAgain(t *testing.T) {
	nothing := func(*world) {}
	for name, first := range map[string]func(w *world){
		"DEL of the container that has the address": nothing,
		"DEL of the former container":               func(w *world) { w.del("c1") },
		"a refused ADD": func(w *world) {
			w.refused(ask{pod: "web-0", container: "x"}, ErrExhausted)
		},
		"CHECK": func(w *world) {
			if err := w.service.Verify(context.Background(), w.request(ask{container: "c2"})); err != nil {
				w.t.Error(err)
			}
		},
		"GC": func(w *world) {
			valid := []lease.Attachment{on("c2", "eth0")}
			if err := w.service.Collect(context.Background(), w.where().Pool, valid); err != nil {
				w.t.Error(err)
			}
		},
		"a round of the agent after an ADD": func(w *world) {
			w.refused(ask{pod: "web-0", container: "x"}, ErrExhausted)
			w.serve()
		},
		"an ADD that was killed before its commit": func(w *world) {
			w.refused(ask{pod: "web-0", container: "x"}, ErrExhausted)
			w.wipe(w.stateDir(), w.service.Store.Dirs().Run, w.path(".leasehold"))
		},
		"an ADD whose store is lost afterwards": func(w *world) {
			w.refused(ask{pod: "web-0", container: "x"}, ErrExhausted)
			w.wipe(w.stateDir())
		},
	} {
		for _, late := range []string{"before", "after"} {
			t.Run(fmt.Sprintf("%s, and a late DEL %s", name, late), func(t *testing.T) {
				w := usedAgainByKruise(t)
				first(w)
				if late == "before" {
					w.del("c1")
					w.refused(ask{pod: "web-0", container: "x"}, ErrExhausted)
				}
				w.del("c2")
				delete(w.addrs, "/run/netns/c2")
				w.burn("c2")
				if late == "after" {
					w.del("c1")
				}
				w.same("held", w.leases(), "10.0.0.4=db-0/Firm")
				w.same("file", w.files(), "10.0.0.4=#held:db/db-0:firm")
				w.after(50 * time.Minute)
				w.refused(ask{pod: "web-0", container: "x"}, ErrExhausted)
				w.same("the pod is back", w.add(ask{pod: "db-0", container: "c3", window: hour}), "10.0.0.4")
				w.del("c1")
				w.del("c2")
				w.same("late DELs", w.leases(), "10.0.0.4=db-0/Bound")
				w.stop("c3")
				w.after(hour)
				w.same("the window is over", w.add(ask{pod: "web-0", container: "c4"}), "10.0.0.4")
			})
		}
	}
}
