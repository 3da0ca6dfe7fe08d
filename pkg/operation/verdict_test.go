package operation

import (
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// TestJudge has every row of the table in docs/design.md.
func TestJudge(t *testing.T) {
	const alive, dead, unknown = lease.Alive, lease.Dead, lease.Unknown
	always := func(v verdict) func(file, holder lease.Liveness) verdict {
		return func(lease.Liveness, lease.Liveness) verdict { return v }
	}
	unlessDead := func(v verdict) func(file, holder lease.Liveness) verdict {
		return func(file, _ lease.Liveness) verdict {
			if file == dead {
				return follow
			}
			return v
		}
	}
	table := map[lease.State]map[says]func(file, holder lease.Liveness) verdict{
		lease.None: {
			saysNothing: always(follow), saysNobody: always(given), saysLease: always(follow),
			saysOther: unlessDead(given),
		},
		lease.Bound: {
			saysNothing: func(_, holder lease.Liveness) verdict {
				if holder == dead {
					return release
				}
				return missing
			},
			saysNobody: always(follow), saysLease: always(follow),
			saysOther: func(file, holder lease.Liveness) verdict {
				switch {
				case file == dead:
					return follow
				case holder == dead:
					return given
				}
				return disputed
			},
		},
		lease.Held: {
			saysNothing: always(follow), saysNobody: always(follow), saysLease: always(follow),
			saysOther: unlessDead(given),
		},
	}
	for state, files := range table {
		if len(files) != int(saysOther)+1 {
			t.Errorf("%s: %d rows", state, len(files))
		}
		for file, want := range files {
			for _, of := range []lease.Liveness{alive, dead, unknown} {
				for _, holder := range []lease.Liveness{alive, dead, unknown} {
					life := func() lease.Liveness { return holder }
					if got := judge(state, file, of, true, life); got != want(of, holder) {
						t.Errorf("%s, file %d of %s, holder %s: %d, want %d", state, file, of, holder, got,
							want(of, holder))
					}
					known := holder
					if known == unknown {
						known = dead // nothing but the file was known of the holder
					}
					if got := judge(state, file, of, false, life); got != want(of, known) {
						t.Errorf("%s, file %d of %s, holder %s, no namespace: %d, want %d", state, file, of, holder,
							got, want(of, known))
					}
				}
			}
		}
	}
}
