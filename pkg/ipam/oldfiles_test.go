package ipam

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// oldHostLocal does what host-local did before v0.8.0: its file names the container alone. The
// address is in no namespace and not in libcni's cache, as with gVisor and an old runtime.
func (w *world) oldHostLocal(addr, container string) {
	w.t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Join(w.dataDir, w.network), 0o755),
		os.WriteFile(w.path(addr), []byte(container), 0o600))
	if err != nil {
		w.t.Fatal(err)
	}
}

// gc calls GC with a list of valid attachments.
func (w *world) gc(valid ...lease.Attachment) {
	w.t.Helper()
	if err := w.service.Collect(context.Background(), w.where().Pool, valid); err != nil {
		w.t.Fatal(err)
	}
}

// delOf is the DEL of one interface of a container in the present network.
func (w *world) delOf(container, ifName string) {
	w.t.Helper()
	if err := w.another().Release(context.Background(), on(container, ifName), w.where()); err != nil {
		w.t.Fatal(err)
	}
}

// A file that names the container alone may belong to any of its interfaces. GC keeps the address
// while any attachment of the container is valid, and the DEL of the container frees it.
func TestFilesThatNameTheContainerAlone(t *testing.T) {
	for name, first := range map[string]func(w *world){
		"the first call is a DEL": func(*world) {},
		"the first call is a GC": func(w *world) {
			w.gc(on("c1", "eth0"))
		},
		"the first call is an ADD": func(w *world) {
			w.refused(ask{pod: "x", container: "x1"}, ErrExhausted)
		},
		"host-local gives the address later": func(w *world) {
			w.wipe(w.path("10.0.0.2"))
			w.add(ask{container: "x1"})
			w.del("x1")
			w.oldHostLocal("10.0.0.2", "c1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
			w.oldHostLocal("10.0.0.2", "c1")
			first(w)
			if name != "the first call is a DEL" {
				w.gc(on("c1", "eth0"), on("c2", "eth0"))
				w.refused(ask{pod: "x", container: "x1"}, ErrExhausted)
				w.gc(on("c1", "net1"))
				w.refused(ask{pod: "x", container: "x1"}, ErrExhausted)
				req := w.request(ask{container: "c1"})
				if err := w.service.Verify(context.Background(), req); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}
			w.delOf("c2", "eth0")
			w.refused(ask{pod: "x", container: "x1"}, ErrExhausted)
			w.delOf("c1", "eth0")
			w.delOf("c1", "eth0")
			w.same("after its DEL", w.add(ask{pod: "x", container: "x2"}), "10.0.0.2")
			w.delOf("c1", "eth0")
			w.same("a late DEL", w.leases(), "10.0.0.2=x/Bound")
		})
	}
}
