package maintain

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// If all steps of a transaction succeed and the transaction does not, they are not tried again.
func TestStepsOfATransactionThatFails(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	s := &Service{Node: &transact.Node{
		Store: store.New(store.Dirs{State: state, Run: filepath.Join(dir, "run")}),
		Host:  host.New("/proc", host.DefaultBootIDFile),
		Clock: func() lease.Instant { return lease.Instant{Wall: time.Now(), Boot: time.Hour, BootID: "b"} },
	}}
	calls, tooMany := 0, errors.New("the step is repeated without end")
	done, err := s.inSteps(t.Context(), 2, func(*transact.Call, int) error {
		if calls++; calls > 50 {
			return tooMany
		}
		return os.Remove(filepath.Join(state, "leases.db")) // another program removes the store
	})
	if err == nil || errors.Is(err, tooMany) || done.Taken != nil {
		t.Errorf("%v after %d calls, %+v", err, calls, done)
	}
}
