package store

import (
	"slices"

	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/record"
)

// FuzzNamedPod verifies that a record that can be read has a valid name, and reads the same
// after it is written again.
func FuzzNamedPod(f *testing.F) {
	r := storedPod{NamedPod{Name: "registry-x", ReserveAs: "registry", Window: lease.Window(time.Hour)},
		1700000000}
	content := record.Encode(namedPodFields, &r, nil)
	f.Add("db", "u1", content[:len(content)-record.SumBytes])
	f.Add("", "", []byte{1, 1})
	f.Fuzz(func(t *testing.T, namespace, uid string, body []byte) {
		p, stored, err := decodeNamedPod(namedPodKey(namespace, uid), record.Seal(slices.Clone(body)))
		if err != nil {
			return
		}
		if !lease.IsReserveAs(p.ReserveAs) || p.Window < 0 {
			t.Fatalf("read as %+v", p)
		}
		s := open(t)
		if s.Update(t.Context(), func(tx *Tx) error { return tx.SetNamedPod(p, stored) }) != nil {
			return // a key that no pod has
		}
		view(t, s, func(tx *Tx) {
			if again, found := tx.NamedPod(p.Namespace, p.UID); !found || again != p {
				t.Errorf("%+v is read again as %+v, %v", p, again, found)
			}
		})
	})
}
