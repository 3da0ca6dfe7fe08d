package store

import (
	"cmp"
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

// Spooled is a DEL that is not recorded in the store yet. It is a file in the run directory whose
// name contains the boot, the time and the attachment (nameOf). The file also has the pool of the
// DEL if the store may have no lease of the attachment. The next call and the agent replay it
// before anything else, and a View shows it as done.
//
// The directory does not survive a reboot. It need not, because after a reboot the boot id of a
// lease proves that the holder is dead. Where it survives, the DELs of another boot are Stale.
type Spooled struct {
	lease.Attachment
	At lease.Instant // the time of the release
	// Stale reports whether the DEL is of another boot. It is not replayed: the boot has ended the
	// leases of its container, which may have come back since with the same id.
	Stale bool

	file string
}

// SpoolDir returns the directory of spooled DELs.
func (s *Store) SpoolDir() string { return filepath.Join(s.dirs.Run, "spool") }

// Spool records a DEL in the spool, with the pool of its configuration (Spooled.Pool), which may be
// zero. It needs neither the store nor its lock.
func (s *Store) Spool(who lease.Attachment, p lease.Pool, now lease.Instant) error {
	name, content := nameOf(who)
	if p != (lease.Pool{}) {
		content += poolLine(p)
	}
	// The names of a boot are in the order of its clock.
	name = fmt.Sprintf("%s.%020d.%d.%s", bootName(now.BootID), int64(now.Boot), now.Wall.UnixNano(), name)
	return createNamed("spool", s.SpoolDir(), name, content)
}

// bootName returns a boot id for the name of a file, which has a dot after it, and "-" for one that
// is not known.
func bootName(id string) string {
	if id == "" || strings.ContainsAny(id, "./") {
		return "-"
	}
	return id
}

// poolLine ends with a line break, so that a part of it is not taken for a pool.
func poolLine(p lease.Pool) string { return string(poolKey(p)) + "\n" }

// Pool returns the pool of the DEL's configuration, the zero Pool if it is not known.
func (r Spooled) Pool() lease.Pool {
	b, _, err := files.Read(r.file)
	_, line := nameOf(r.Attachment)
	text, whole := strings.CutSuffix(strings.TrimPrefix(string(b), line), "\n")
	dir, network, ok := strings.Cut(text, "\x00")
	if err != nil || !whole || !ok {
		return lease.Pool{}
	}
	return lease.Pool{DataDir: dir, Network: network}
}

// Spooled returns the spooled DELs, the oldest of this boot first. It ignores directories, and
// files with other names. bootID is the id of this boot; if it is "", no DEL is Stale.
func (s *Store) Spooled(bootID string) ([]Spooled, error) {
	names, err := files.List(s.SpoolDir())
	if err != nil {
		return nil, fmt.Errorf("%w: spool: %w", ErrIO, err)
	}
	var out []Spooled
	for _, name := range names {
		file := filepath.Join(s.SpoolDir(), name)
		r, ok := parseSpooled(file, bootID)
		if info, err := os.Lstat(file); ok && err == nil && !info.IsDir() {
			out = append(out, r)
		}
	}
	return out, nil
}

func parseSpooled(file, bootID string) (Spooled, bool) {
	parts := strings.SplitN(filepath.Base(file), ".", 4)
	if len(parts) < 4 {
		return Spooled{}, false
	}
	boot, err1 := strconv.ParseInt(parts[1], 10, 64)
	wall, err2 := strconv.ParseInt(parts[2], 10, 64)
	who, ok := AttachmentOf(parts[3], file)
	at := lease.Instant{Wall: time.Unix(0, wall).UTC(), Boot: time.Duration(boot), BootID: bootID}
	if parts[0] != bootName("") && parts[0] != bootName(bootID) {
		at.BootID = parts[0]
	}
	return Spooled{who, at, bootID != "" && at.BootID != bootID, file}, ok && err1 == nil && err2 == nil
}

// Unspool removes DELs from the spool. It must be called after their replay was committed.
func (s *Store) Unspool(records []Spooled) error {
	var failed error
	for _, r := range records {
		if err := os.Remove(r.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, fmt.Errorf("%w: spool: %w", ErrIO, err))
		}
	}
	return failed
}

// HoldAfter returns the hold that a DEL of the holder at a time makes of a bound lease. It reports
// false if the DEL makes none, or if limits of holds decide which: then the DELs of several holders
// count in their order, which a power cut must not change.
func (tx *Tx) HoldAfter(l lease.Lease, at lease.Instant) (hold lease.Lease, ok bool) {
	limited := l.Window > 0 && (l.HeldLimit != 0 || len(tx.Limits()) > 0) && !l.OfEarlierBoot(at.BootID)
	if l.State != lease.Bound || limited || l.BoundAt.IsAfter(at) {
		return lease.Lease{}, false
	}
	hold, err := lease.Apply(l, lease.Release{Holder: l.Holder}, at)
	return hold, err == nil && hold.State == lease.Held
}

// showSpooled has the transaction, of a View, show the spooled DELs as done: the next Update
// replays them before anything else, so that is what the next call finds. It leaves out those that
// only a call can process: of damaged records, and where HoldAfter reports false.
func (s *Store) showSpooled(tx *Tx) {
	spooled, err := s.Spooled(s.bootID())
	if err != nil || len(spooled) == 0 {
		return // Survey reports the error
	}
	tx.waiting = map[string]lease.Lease{}
	for _, r := range spooled {
		if r.Stale {
			continue
		}
		leases, _ := tx.ByHolder(r.ContainerID, r.IfName)
		for _, l := range leases {
			at := r.At
			at.BootID = cmp.Or(at.BootID, l.Holder.BootID)
			if hold, ok := tx.HoldAfter(l, at); ok {
				tx.waiting[string(leaseKey(tx.pools[l.Pool], l.Address))] = hold
			}
		}
	}
}

// Waiting returns how many leases a View shows as released by spooled DELs, and whether it shows
// one of the given attachment so.
func (tx *Tx) Waiting(who lease.Attachment) (all int, done bool) {
	for _, l := range tx.waiting {
		done = done || l.Holder.Attachment() == who
	}
	return len(tx.waiting), done
}
