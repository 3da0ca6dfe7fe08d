package operation

import (
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
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
		check.Equal(t, len(files), int(saysOther)+1, "files of", state)
		for file, want := range files {
			for _, of := range []lease.Liveness{alive, dead, unknown} {
				for _, holder := range []lease.Liveness{alive, dead, unknown} {
					life := func() lease.Liveness { return holder }
					check.Equal(t, judge(state, file, of, true, life), want(of, holder), state, file, of, holder)
					known := holder
					if known == unknown {
						known = dead // nothing but the file was known of the holder
					}
					check.Equal(t, judge(state, file, of, false, life), want(of, known), state, file, of, holder,
						"no namespace")
				}
			}
		}
	}
}
