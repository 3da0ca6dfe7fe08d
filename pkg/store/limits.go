package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Limits returns the limits of namespaces that SetLimits stored. There are none if they cannot be
// read.
func (tx *Tx) Limits() policy.Limits {
	var limits policy.Limits
	if v := tx.bucket(bucketMeta).Get(metaLimits); v != nil && json.Unmarshal(v, &limits) != nil {
		return nil
	}
	return limits
}

// SetLimits stores the limits of namespaces. The agent reads them from the API server, which the
// plugin cannot. If they are the same as before, nothing is written.
func (tx *Tx) SetLimits(limits policy.Limits) error {
	if maps.Equal(limits, tx.Limits()) {
		return nil
	}
	if len(limits) == 0 {
		return tx.delete(bucketMeta, metaLimits)
	}
	v, err := json.Marshal(limits)
	if err != nil {
		return fmt.Errorf("limits of namespaces: %w", err)
	}
	return tx.put(bucketMeta, metaLimits, v)
}

// HoldsOf returns how many addresses the namespace of a lease has in holds, in all pools, and how
// many of them in the range set of the lease, without the address of the lease itself. An address
// of which several data directories of a network have a lease counts once. It reads the leases of
// that namespace only, and skips damaged records.
func (tx *Tx) HoldsOf(of lease.Lease) (all, inSet int) {
	inAnyDir := func(l lease.Lease) lease.Place {
		return lease.Place{Pool: lease.Pool{Network: l.Pool.Network}, Address: l.Address}
	}
	counted := map[lease.Place]bool{inAnyDir(of): true}
	for _, id := range tx.pools {
		prefix := append(id.prefix(), of.Namespace+"\x00"...)
		for k := range tx.prefixed(bucketKeys, prefix) {
			name, rest, _ := bytes.Cut(k[len(prefix):], []byte{0})
			_, addr, _ := bytes.Cut(rest, []byte{0})
			if strings.HasPrefix(string(name), reservationMark) {
				continue // the lease has an entry by its pod, too
			}
			l, err := tx.at(append(id.prefix(), addr...))
			if err != nil || !l.IsHold {
				continue
			}
			if at := inAnyDir(l); !counted[at] {
				counted[at] = true
				all++
			}
			if l.Pool == of.Pool && l.Set == of.Set {
				inSet++
			}
		}
	}
	return all, inSet
}

// SetSize returns how many addresses of a range set can be assigned, and reports whether the set is
// configured.
func (tx *Tx) SetSize(p lease.Pool, set string) (uint64, bool) {
	size, _, ok := decodeRanges(tx.readSet(tx.pools[p], set).configured)
	return size, ok
}
