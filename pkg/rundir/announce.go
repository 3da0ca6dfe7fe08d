package rundir

import (
	"fmt"
	"path/filepath"
	"syscall"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Announcements returns the directory of the pods to announce. It has a file for each attachment
// that came back to its address (AttachmentOf). The node agent reads the attachment's addresses
// from the store, announces them and removes the file.
func (d Dir) Announcements() string { return d.path("announce") }

// Announce has the agent announce an attachment. On a node without an agent the file stays until
// the attachment ends.
func (d Dir) Announce(who lease.Attachment) error {
	name, line := nameOf(who)
	if err := create(d.Announcements(), name, line); err != nil {
		return fmt.Errorf("announcement: %w", err)
	}
	return nil
}

// Unannounce removes the file of an attachment that has ended, if there is one. It costs one system
// call.
func (d Dir) Unannounce(who lease.Attachment) {
	name, _ := nameOf(who)
	_ = syscall.Unlink(filepath.Join(d.Announcements(), name))
}
