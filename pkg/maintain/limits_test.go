package maintain

import (
	"maps"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// A node that has had no pod gets the limits, and no store without any.
func TestLimitsOfAnUnusedStore(t *testing.T) {
	s := newService(t)
	for _, want := range []policy.Limits{nil, {"db.choose": "true"}, nil} {
		must.Succeed(t, s.SetLimits(t.Context(), want))
		var got policy.Limits
		err := s.Node.Store.View(t.Context(), func(tx *store.Tx) error {
			got = tx.Limits()
			if problems := tx.Check(); len(problems) > 0 {
				t.Error(problems)
			}
			return nil
		})
		if want == nil && store.IsEmpty(err) {
			continue
		}
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("stored %v, %v; want %v", got, err, want)
		}
	}
}
