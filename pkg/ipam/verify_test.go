package ipam

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

// A record that is damaged is made again by CHECK as by any other call.
func TestCheckOfADamagedRecord(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "db-0")
	if err := w.service.Verify(context.Background(), w.request(ask{pod: "db-0", container: "c1"})); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	err := w.service.Verify(context.Background(), w.request(ask{pod: "db-1", container: "c2"}))
	if !errors.Is(err, ErrCheckFailed) {
		t.Errorf("CHECK of another container: %v, want ErrCheckFailed", err)
	}
}
