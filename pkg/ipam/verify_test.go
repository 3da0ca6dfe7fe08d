package ipam

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// CHECK of a container that the store knows only reads, so it does not wait for other readers.
// While another process writes, it is skipped.
func TestCheckBesideOtherProcesses(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	known, unknown := w.request(ask{pod: "db-0", container: "c1"}), w.request(ask{pod: "db-1", container: "c2"})
	verify := func(req Request) (skipped bool, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		w.warned = nil
		err = w.another().Verify(ctx, req)
		return len(w.warned) == 1 && strings.HasPrefix(w.warned[0], "CHECK of container "+req.ContainerID), err
	}
	other := store.New(w.service.Node.Store.Dirs())
	err := errors.Join(
		other.View(t.Context(), func(*store.Tx) error {
			if skipped, err := verify(known); skipped || err != nil {
				t.Errorf("another process reads: skipped: %v, %v", skipped, err)
			}
			if skipped, err := verify(unknown); !skipped || err != nil {
				t.Errorf("another process reads, and an unknown container is learned: skipped: %v, %v", skipped, err)
			}
			return nil
		}),
		other.Update(t.Context(), func(*store.Tx) error {
			if skipped, err := verify(known); !skipped || err != nil {
				t.Errorf("another process writes: skipped: %v, %v", skipped, err)
			}
			return nil
		}))
	must.Succeed(t, err)
}
