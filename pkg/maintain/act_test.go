package maintain

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// newService returns the service of a node that has had no pod.
func newService(t *testing.T) *Service {
	dir := t.TempDir()
	return &Service{Node: &operation.Node{
		Store: store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}),
		Host:  host.New("/proc", host.DefaultBootIDFile),
		Clock: func() lease.Instant { return lease.Instant{Wall: time.Now(), Boot: time.Hour, BootID: "b"} },
	}}
}

// A step that fails because of its own lease keeps no other one from being committed, once. One
// that fails because of the store ends them all.
func TestStepsThatFail(t *testing.T) {
	for failed, want := range map[error]string{
		errors.New("it fails"):  "[0 2]",
		store.ErrDamaged:        "[0 2]",
		store.ErrIO:             "[0]",
		operation.ErrNoHostView: "[0]",
		lease.ErrHolderAlive:    "[0 2]",
		store.ErrBusy:           "[0]",
	} {
		s := newService(t)
		done, err := inSteps(t.Context(), s, []int{0, 1, 2}, func(c *operation.Call, i int) (bool, error) {
			if i == 1 {
				return true, failed
			}
			return true, errors.Join(c.Tx.BeginBoot("b"), c.Tx.Count("steps", 1))
		})
		check.Is(t, err, failed, done)
		check.Equal(t, fmt.Sprint(done), want, failed)
		err = s.Node.Store.View(t.Context(), func(tx *store.Tx) error {
			check.Equal(t, int(tx.Counter("steps")), len(done), failed, "committed steps")
			return nil
		})
		must.Succeed(t, err)
	}
}
