package adopt

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// hostLocal hears the files that host-local and our mirror keep for a pool, one for each address
// (docs/facts.md, "One file for each address"). Everything else in the directory has a name that is
// no address. An error means that addresses in use may be unknown.
func hostLocal(p lease.Pool, notes *notes) ([]Claim, error) {
	names, err := list(Dir(p))
	if err != nil {
		return nil, err
	}
	var out []Claim
	for _, name := range names {
		addr, ok := parseAddr(name)
		if !ok || addr.String() != name {
			continue
		}
		path := filepath.Join(Dir(p), name)
		b, modified, err := readFile(path)
		if isMissing(err) {
			continue // released meanwhile
		}
		c, ok := parseFile(string(b))
		if err != nil {
			c, modified = Claim{Kind: File}, time.Time{} // the name alone says that the address is in use
			notes.add("host-local's file cannot be read: %v", err)
		} else if !ok {
			notes.add("host-local's file %s names nobody; its address counts as in use", path)
		}
		c.Address, c.Modified, c.Witness = addr, modified, "host-local's file "+path
		out = append(out, c)
	}
	return out, nil
}

// parseFile reads what host-local writes ("<container>\r\n<interface>", before
// v0.8.0 the container alone) or what our mirror does. Of anything else, as an
// empty file after a power cut, it says false: the owner is unknown.
func parseFile(content string) (Claim, bool) {
	if IsMarker(content) {
		if c, ok := ParseMarker(content); ok {
			return c, true
		}
		return Claim{Kind: File}, false
	}
	id, ifName, _ := strings.Cut(strings.TrimSpace(content), "\n")
	id = strings.TrimSpace(id)
	if !isContainerID(id) {
		return Claim{Kind: File}, false
	}
	c := Claim{Kind: File, ContainerID: id}
	if isIfName(ifName) {
		c.IfName = ifName
	}
	return c, true
}
