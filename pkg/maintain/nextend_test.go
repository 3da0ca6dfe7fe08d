package maintain

import (
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
)

func TestNextEnd(t *testing.T) {
	now := lease.Instant{Wall: time.Unix(1_700_000_000, 0).UTC(), Boot: time.Hour, BootID: "boot-1"}
	held := func(hold time.Duration) lease.Lease {
		return lease.Lease{State: lease.Held, Hold: lease.Window(hold), ReleasedAt: now}
	}
	bound := lease.Lease{State: lease.Bound}
	for name, c := range map[string]struct {
		leases []lease.Lease
		want   time.Duration
	}{
		"no leases":    {nil, time.Duration(lease.Forever)},
		"no holds":     {[]lease.Lease{bound}, time.Duration(lease.Forever)},
		"held forever": {[]lease.Lease{held(time.Duration(lease.Forever))}, time.Duration(lease.Forever)},
		"the next":     {[]lease.Lease{held(time.Hour), held(time.Minute), bound}, time.Minute},
		"over":         {[]lease.Lease{held(0)}, time.Duration(lease.Forever)},
		"one is not":   {[]lease.Lease{held(0), held(time.Hour)}, time.Hour},
	} {
		check.Equal(t, (Survey{NodeView: NodeView{Leases: c.leases, Now: now}}).NextEnd(), lease.Window(c.want), name)
	}
}

// A hold ends when its time is over and its last holder has gone, not for one of both.
func TestPlanEndsHolds(t *testing.T) {
	now := lease.Instant{Wall: time.Unix(1_700_000_000, 0).UTC(), Boot: 2 * time.Hour, BootID: "boot-1"}
	released := lease.Instant{Wall: now.Wall.Add(-time.Hour), Boot: time.Hour, BootID: "boot-1"}
	for hold, ofLast := range map[time.Duration]map[lease.Liveness]bool{
		time.Hour - 1:                {lease.Dead: true, lease.Alive: false, lease.Unknown: false},
		time.Hour + 1:                {lease.Dead: false, lease.Alive: false, lease.Unknown: false},
		time.Duration(lease.Forever): {lease.Dead: false, lease.Alive: false, lease.Unknown: false},
	} {
		for last, want := range ofLast {
			l := lease.Lease{ID: "1", State: lease.Held, IsHold: true, Hold: lease.Window(hold), ReleasedAt: released}
			plan := Plan(Survey{NodeView: NodeView{Now: now, Leases: []lease.Lease{l}},
				Last: map[Ref]lease.Liveness{RefTo(l): last}})
			if got := len(plan) == 1 && plan[0].Do == Expire; got != want || len(plan) > 0 && !want {
				t.Errorf("held for %s, last holder %s: %+v", hold, last, plan)
			}
		}
	}
}
