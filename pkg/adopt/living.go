package adopt

import (
	"fmt"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// living returns the candidates of the addresses that are on interfaces.
func living(spaces []host.Namespace, notes *notes) []candidate {
	var out []candidate
	for _, s := range spaces {
		if s.Err != nil {
			notes.addUnread("%v", s.Err)
		}
		for _, a := range s.Addresses {
			out = append(out, candidate{
				Kind: fromLiving, Address: a.Addr, IfName: a.IfName, Netns: s.Netns, MAC: a.MAC,
				Source: fmt.Sprintf("interface %s in netns %s", a.IfName, s.Netns.Path),
			})
		}
	}
	return out
}

// lives reports whether a namespace is in the list.
func lives(spaces []host.Namespace, n lease.Netns) bool {
	for _, s := range spaces {
		if s.Netns.Same(n) {
			return true
		}
	}
	return false
}
