package transact

import (
	"testing"
	"time"
)

// A call waits for host-local's lock as long as its scope says, or for lockMoment.
func TestWaitForHostLocal(t *testing.T) {
	for wait, want := range map[time.Duration]time.Duration{
		0: lockMoment, time.Millisecond: time.Millisecond, time.Minute: time.Minute,
	} {
		if got := newMirrors(t.Context(), wait, nil).wait; got != want {
			t.Errorf("scope %s: waits %s, want %s", wait, got, want)
		}
	}
}
