package adopt

import (
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func (n Node) living(notes *notes) ([]Claim, error)                   { return nil, nil }
func (n Node) cache(network string, notes *notes) []Claim             { return nil }
func hostLocal(p lease.Pool, notes *notes) ([]Claim, error)           { return nil, nil }
func kruise(dataDir string, notes *notes) []Claim                     { return nil }
func (n Node) CacheEntry(network, containerID, ifName string) []Claim { return nil }

// Decide weighs the claims of a pool.
func Decide(claims []Claim, p lease.Pool, now lease.Instant, soft time.Duration, newID func() string) []Finding {
	return nil
}
