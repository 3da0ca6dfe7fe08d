package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// QueuedDEL is a DEL that is not recorded in the store yet. It is a file whose name contains the
// boot, the time and the attachment (nameOf). The file also has the pool of the DEL if the store
// may have no lease of the attachment. The next call and the agent apply it before anything else,
// and a View of the store shows it as applied.
//
// The queue need not survive a reboot, because after a reboot the boot id of a lease proves that
// the holder is dead. Where it survives, the DELs of another boot are Stale.
type QueuedDEL struct {
	lease.Attachment
	At lease.Instant // the time of the release
	// Stale reports whether the DEL is of another boot. It is not applied: the boot has ended the
	// leases of its container, which may have come back since with the same id.
	Stale bool

	file string
}

// Queue returns the directory of queued DELs.
func (d Dir) Queue() string { return d.path("queue") }

// AddDEL adds a DEL to the queue, with the pool of its configuration (QueuedDEL.Pool), which may be
// zero.
func (d Dir) AddDEL(who lease.Attachment, p lease.Pool, now lease.Instant) error {
	name, content := nameOf(who)
	if p != (lease.Pool{}) {
		content += poolLine(p)
	}
	// The names of a boot are in the order of its clock.
	name = fmt.Sprintf("%s.%020d.%d.%s", bootName(now.BootID), int64(now.Boot), now.Wall.UnixNano(), name)
	if err := create(d.Queue(), name, content); err != nil {
		return fmt.Errorf("queue of DELs: %w", err)
	}
	return nil
}

// bootName returns a boot id for the name of a file, which has a dot after it, and "-" for one that
// is not known.
func bootName(id string) string {
	if id == "" || strings.ContainsAny(id, "./") {
		return "-"
	}
	return id
}

// Pool returns the pool of the DEL's configuration, the zero Pool if it is not known.
func (r QueuedDEL) Pool() lease.Pool {
	b, _, err := files.Read(r.file)
	_, line := nameOf(r.Attachment)
	text, whole := strings.CutSuffix(strings.TrimPrefix(string(b), line), "\n")
	dir, network, ok := strings.Cut(text, "\x00")
	if err != nil || !whole || !ok {
		return lease.Pool{}
	}
	return lease.Pool{DataDir: dir, Network: network}
}

// QueuedDELs returns the queue, the oldest of this boot first. It ignores directories, and
// files with other names. bootID is the id of this boot; if it is "", no DEL is Stale.
func (d Dir) QueuedDELs(bootID string) ([]QueuedDEL, error) {
	names, err := files.List(d.Queue())
	if err != nil {
		return nil, fmt.Errorf("queue of DELs: %w", err)
	}
	var out []QueuedDEL
	for _, name := range names {
		file := filepath.Join(d.Queue(), name)
		r, ok := parseDEL(file, bootID)
		if info, err := os.Lstat(file); ok && err == nil && !info.IsDir() {
			out = append(out, r)
		}
	}
	return out, nil
}

func parseDEL(file, bootID string) (QueuedDEL, bool) {
	parts := strings.SplitN(filepath.Base(file), ".", 4)
	if len(parts) < 4 {
		return QueuedDEL{}, false
	}
	boot, err1 := strconv.ParseInt(parts[1], 10, 64)
	wall, err2 := strconv.ParseInt(parts[2], 10, 64)
	who, ok := AttachmentOf(parts[3], file)
	at := lease.Instant{Wall: time.Unix(0, wall).UTC(), Boot: time.Duration(boot), BootID: bootID}
	if parts[0] != bootName("") && parts[0] != bootName(bootID) {
		at.BootID = parts[0]
	}
	return QueuedDEL{who, at, bootID != "" && at.BootID != bootID, file}, ok && err1 == nil && err2 == nil
}

// RemoveDELs removes DELs from the queue. It must be called after they were applied and committed.
func (d Dir) RemoveDELs(records []QueuedDEL) error {
	var failed error
	for _, r := range records {
		if err := os.Remove(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("queue of DELs: %w", err))
		}
	}
	return failed
}
