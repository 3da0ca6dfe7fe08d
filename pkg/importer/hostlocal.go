package importer

import (
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// hostLocal returns the candidates of host-local's files of a pool, one for each address
// (docs/facts.md, "One file for each address"). They include our marks of holds. An error means
// that addresses in use may be unknown.
func (s Sources) hostLocal(p lease.Pool, notes *notes) ([]candidate, error) {
	dir := s.Files
	if dir == nil {
		var err error
		if dir, err = hostlocal.OpenUnlocked(p); err != nil || dir == nil {
			return nil, err
		}
	}
	addrs, err := dir.Addresses()
	if err != nil {
		return nil, err
	}
	var out []candidate
	for _, addr := range addrs {
		file, found, err := dir.Read(addr)
		if !found {
			continue // released since they were listed
		}
		path := dir.FilePath(addr)
		c, known := candidateOf(file.Content)
		if err != nil {
			c = candidate{Kind: fromFile, Unreadable: true} // the name alone means that the address is in use
			notes.add("host-local's file cannot be read: %v", err)
		} else if !known {
			notes.add("host-local's file %s names no container; its address counts as in use", path)
		}
		c.Address, c.Modified, c.Source = addr, file.Modified, "host-local's file "+path
		out = append(out, c)
	}
	return out, nil
}

// candidateOf returns the candidate of a file's content. It reports false if the owner is unknown:
// after a power cut a file may be empty.
func candidateOf(content string) (candidate, bool) {
	if h, ok := hostlocal.ParseHold(content); ok {
		return candidate{
			Kind: fromHoldFile, Namespace: h.Namespace, Name: h.Name, UID: h.UID, IfName: h.IfName,
			ReserveAs: h.ReserveAs,
			Released:  true, IsHold: h.IsHold, Window: h.Window, WindowKnown: true, Until: h.Until,
		}, true
	}
	containerID, ifName, ok := hostlocal.ParseOwner(content)
	return candidate{Kind: fromFile, ContainerID: containerID, IfName: ifName}, ok
}
