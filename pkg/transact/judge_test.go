package transact

import (
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// TestJudge has every row of the table in docs/design.md.
func TestJudge(t *testing.T) {
	always := func(v verdict) map[lease.Liveness]verdict {
		return map[lease.Liveness]verdict{lease.Alive: v, lease.Dead: v, lease.Unknown: v}
	}
	unlessAlive := func(alive, otherwise verdict) map[lease.Liveness]verdict {
		return map[lease.Liveness]verdict{lease.Alive: alive, lease.Dead: otherwise, lease.Unknown: alive}
	}
	table := map[lease.State]map[says]map[lease.Liveness]verdict{
		lease.None: {
			saysNothing: always(follow), saysNobody: always(imports), saysHeld: always(follow),
			saysHolder: always(imports), saysLeftOver: always(follow), saysOther: always(imports),
		},
		lease.Bound: {
			saysNothing: unlessAlive(follow, release), saysNobody: always(follow), saysHeld: always(follow),
			saysHolder: always(follow), saysLeftOver: always(follow), saysOther: unlessAlive(disputed, imports),
		},
		lease.Held: {
			saysNothing: always(follow), saysNobody: always(follow), saysHeld: always(follow),
			saysHolder: always(follow), saysLeftOver: always(follow), saysOther: always(imports),
		},
	}
	for state, files := range table {
		if len(files) != int(saysOther)+1 {
			t.Errorf("%s: %d rows", state, len(files))
		}
		for file, lives := range files {
			for life, want := range lives {
				of := func() lease.Liveness { return life }
				if got := judge(state, file, true, of); got != want {
					t.Errorf("%s, file %d, %s: %d, want %d", state, file, life, got, want)
				}
				if life == lease.Unknown { // nothing but the file was known of the holder
					want = lives[lease.Dead]
				}
				if got := judge(state, file, false, of); got != want {
					t.Errorf("%s, file %d, %s, no namespace: %d, want %d", state, file, life, got, want)
				}
			}
		}
	}
}
