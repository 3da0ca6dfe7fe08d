package importer

import (
	"fmt"
	"net/netip"

	"github.com/leasehold-cni/leasehold/pkg/host"
)

// living returns the candidates of those addresses on interfaces for which match returns true.
func living(spaces []host.Namespace, match func(netip.Addr) bool, notes *notes) []candidate {
	var out []candidate
	for _, s := range spaces {
		if s.Err != nil {
			notes.addUnread("%v", s.Err)
		}
		for _, a := range s.Addresses {
			if !match(a.Addr) {
				continue
			}
			out = append(out, candidate{
				Kind: fromLiving, Address: a.Addr, IfName: a.IfName, Netns: s.Netns, MAC: a.MAC,
				Source: fmt.Sprintf("interface %s in netns %s", a.IfName, s.Netns.Path),
			})
		}
	}
	return out
}
