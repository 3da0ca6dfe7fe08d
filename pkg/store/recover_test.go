package store

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// A lost store that cannot be kept is not replaced.
func TestLostStoreThatCannotBeMoved(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	err := errors.Join(os.Truncate(s.path(), 5000), os.WriteFile(s.lostDir(), nil, 0o600))
	before, errRead := os.ReadFile(s.path())
	must.Succeed(t, errors.Join(err, errRead))
	err = s.Update(t.Context(), func(*Tx) error { t.Error("it was replaced"); return nil })
	check.Is(t, err, ErrIO)
	check.Error(t, err, "moving the lost store")
	if after, err := os.ReadFile(s.path()); err != nil || !bytes.Equal(after, before) {
		t.Errorf("it has changed: %d bytes of %d, %v", len(after), len(before), err)
	}
}
