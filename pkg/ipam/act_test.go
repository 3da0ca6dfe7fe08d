package ipam

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// newService returns the service of a node that has had no pod.
func newService(t *testing.T) *Service {
	dir := t.TempDir()
	return &Service{Node: &transact.Node{
		Store: store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}),
		Host:  host.New("/proc", host.DefaultBootIDFile),
		Clock: func() lease.Instant { return lease.Instant{Wall: time.Now(), Boot: time.Hour, BootID: "b"} },
	}}
}

// The steps before one that fails are committed, each once.
func TestTheStepsBeforeOneThatFails(t *testing.T) {
	s := newService(t)
	const last = 2
	failed := errors.New("it fails")
	done, err := s.inSteps(t.Context(), last+1, func(c *transact.Call, i int) error {
		if i == last {
			return failed
		}
		return errors.Join(c.Tx.BeginBoot("b"), c.Tx.Count("steps", 1))
	})
	if !errors.Is(err, failed) || len(done) != last {
		t.Errorf("%v, %v", done, err)
	}
	err = s.Node.Store.View(t.Context(), func(tx *store.Tx) error {
		if n := tx.Counter("steps"); n != last {
			t.Errorf("%d steps are committed, want %d", n, last)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
