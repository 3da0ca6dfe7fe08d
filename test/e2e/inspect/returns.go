package inspect

import (
	"fmt"
	"net/netip"
)

// Returns has the last address of each family with which each pod came.
type Returns map[string]netip.Addr

// Came records the addresses of a sandbox of a pod, and says which of them replace others.
func (r Returns) Came(pod string, addrs []netip.Addr) (changed []string) {
	for _, now := range addrs {
		key := fmt.Sprintf("%s IPv6: %t", pod, now.Is6())
		if before := r[key]; before.IsValid() && before != now {
			changed = append(changed, fmt.Sprintf("%s had %v and came with %v", pod, before, now))
		}
		r[key] = now
	}
	return changed
}
