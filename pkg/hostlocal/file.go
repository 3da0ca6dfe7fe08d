package hostlocal

import (
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/names"
)

const lineBreak = "\r\n" // host-local's, on every system

// Content returns the content of the file of a lease.
func Content(l lease.Lease, now lease.Instant) string {
	if l.State == lease.Held {
		return formatHold(l, now)
	}
	if l.Holder.ContainerID == "" {
		return "" // an interface alone would be read as a container
	}
	return l.Holder.ContainerID + lineBreak + l.Holder.IfName
}

// Names reports whether a file's content names the attachment: in today's format, or with its
// container alone, as before v0.8.0 (docs/facts.md, "Old files name only the container").
func Names(content, containerID, ifName string) bool {
	id, rest, ok := strings.Cut(content, lineBreak)
	return id == containerID && id != "" && (!ok || rest == ifName)
}

// ParseOwner reads what host-local writes: "<container>\r\n<interface>", before v0.8.0 the
// container alone (ifName is ""). It reports false for anything else, such as a hold, or an empty
// file after a power cut: the owner is unknown.
func ParseOwner(content string) (containerID, ifName string, ok bool) {
	if IsHold(content) {
		return "", "", false
	}
	containerID, ifName, _ = strings.Cut(strings.TrimSpace(content), "\n")
	containerID = strings.TrimSpace(containerID)
	if !names.IsContainerID(containerID) {
		return "", "", false
	}
	if !names.IsIfName(ifName) {
		ifName = ""
	}
	return containerID, ifName, true
}
