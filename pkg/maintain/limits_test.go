package maintain

import (
	"maps"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// A node that has had no pod gets the limits, and no store without any.
func TestLimitsOfAnUnusedStore(t *testing.T) {
	s := newService(t)
	for i, want := range []policy.Limits{nil, {"db.choose": "true"}, nil} {
		must.Succeed(t, s.SetLimits(t.Context(), want))
		exists := false
		var got policy.Limits
		err := s.Node.Store.View(t.Context(), func(tx *store.Tx) error {
			exists, got = true, tx.Limits()
			check.Empty(t, tx.Check())
			return nil
		})
		if err != nil || !maps.Equal(got, want) || i == 0 && exists {
			t.Errorf("stored %v in a store %v, %v; want %v", got, exists, err, want)
		}
	}
}
