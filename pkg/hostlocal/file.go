package hostlocal

import (
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

const lineBreak = "\r\n" // host-local's, on every system

// Content returns the content of host-local's file for a lease.
func Content(l lease.Lease, now lease.Instant) string {
	if l.State == lease.Held {
		return formatHold(l, now)
	}
	if l.Holder.ContainerID == "" {
		return "" // an interface alone would be read as a container
	}
	return l.Holder.ContainerID + lineBreak + l.Holder.IfName
}

// Names reports whether the content of a file names the attachment. Files of host-local before
// v0.8.0 contain the container id alone (docs/facts.md, "Old files name only the container").
func Names(content, containerID, ifName string) bool {
	id, rest, ok := strings.Cut(content, lineBreak)
	return id == containerID && id != "" && (!ok || rest == ifName)
}

// ParseOwner parses the content that host-local writes: "<container>\r\n<interface>", or before
// v0.8.0 the container alone; then ifName is "". It reports false if the owner is unknown, for
// example for a Hold, or for a file that is empty after a power cut.
func ParseOwner(content string) (containerID, ifName string, ok bool) {
	if IsHold(content) {
		return "", "", false
	}
	containerID, ifName, _ = strings.Cut(strings.TrimSpace(content), "\n")
	containerID = strings.TrimSpace(containerID)
	if !IsContainerID(containerID) {
		return "", "", false
	}
	if !IsIfName(ifName) {
		ifName = ""
	}
	return containerID, ifName, true
}

// IsOf reports whether a file that can be read is the one that a lease must have. A lease with an
// unknown owner may have any file.
func (f File) IsOf(l lease.Lease, now lease.Instant) bool {
	switch {
	case l.State == lease.Held:
		return f.Content == strings.TrimSpace(Content(l, now))
	case l.Holder.ContainerID == "":
		return true
	}
	return Names(f.Content, l.Holder.ContainerID, l.Holder.IfName)
}
