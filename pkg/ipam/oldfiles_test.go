package ipam

import (
	"context"
	"errors"
	"os"
	"path/filepath"

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
