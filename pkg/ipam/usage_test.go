package ipam

import (
	"fmt"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// usage returns the usage of each range set, as ranges: size=bound+held+free.
func (w *world) usage() string {
	var out []string
	w.view(func(tx *store.Tx) {
		for _, u := range tx.Usage() {
			out = append(out, fmt.Sprintf("%s: %d=%d+%d+%d", u.Ranges, u.Size, u.Bound, u.Held, u.Free))
		}
	})
	return strings.Join(out, " ")
}
