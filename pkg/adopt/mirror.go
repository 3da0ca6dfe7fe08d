package adopt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Mirror is host-local's own directory of a pool, under host-local's own lock:
// a file for each address that has a lease, so that host-local may serve the
// next call and hand nothing out twice. It is opened for one call and closed.
//
// Files of bound leases have host-local's content (container id, CR LF, interface; docs/facts.md,
// "One file for each address"). A held address keeps its file, with an id that no container can
// have (see Marker): a repeated DEL that host-local serves must not find it. Nothing is synced: the
// store is the truth, and a witness may be late.
//
// A file is removed before the store forgets its lease, and made after the
// store knows it. So what a crash leaves behind is a lease without a file,
// which is made again, and never a file without a lease. A file that names another container than the
// lease that will be committed becomes a mark before.
type Mirror struct {
	dir    string
	lock   *os.File // nil where host-local's lock cannot be had: nothing is written
	marked bool
	leases int // that the mark names; Unproven where it names none
}

var errUnlocked = errors.New("host-local's lock cannot be opened, so nothing is written")

// The mark is a file of ours in the directory of a mirrored pool. It says how many leases have a file
// there, so that a directory from which some were removed, or in which some could not be written, does
// not pass for whole. host-local takes no notice of it: it is the address of nothing.
//
// Older versions marked a directory once and for all, whatever became of the files: theirs proves nothing.
const (
	markName = ".leasehold"
	markText = " leases have their files here\n"
	lockName = "lock" // host-local's
)

// Unproven is the number of leases in a mark that proves nothing.
const Unproven = -1

// Dir is where host-local keeps the files of a pool.
func Dir(p lease.Pool) string { return filepath.Join(p.DataDir, p.Network) }

// IsMirrored reports, without the lock, whether the pool's directory was ever brought in step with the
// store and not removed since. Without host-local's lock file it was: the mark alone was left behind.
func IsMirrored(p lease.Pool) bool {
	for _, name := range []string{markName, lockName} {
		if _, err := os.Lstat(filepath.Join(Dir(p), name)); err != nil {
			return false
		}
	}
	return true
}

// Unmark removes the mark of a directory that is not kept in step any more.
func Unmark(p lease.Pool) error { return os.Remove(filepath.Join(Dir(p), markName)) }

// HasDir reports whether host-local has a directory of the pool.
func HasDir(p lease.Pool) bool {
	info, err := os.Stat(Dir(p))
	return err == nil && info.IsDir() && p.Network != ""
}

// Files are the names in the pool's directory, read without the lock; nil where
// it is not in step with the store anyway, or cannot be read.
func Files(p lease.Pool) map[string]bool {
	if !IsMirrored(p) {
		return nil
	}
	names, err := list(Dir(p))
	if err != nil {
		return nil
	}
	out := make(map[string]bool, len(names))
	for _, name := range names {
		out[name] = true
	}
	return out
}

// OpenMirror takes host-local's lock, making the directory if it is missing.
// It waits until ctx is done, as long as for the store's own lock.
func OpenMirror(ctx context.Context, p lease.Pool) (*Mirror, error) {
	dir := Dir(p)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	marked, leases := IsMirrored(p), readMark(dir)
	if !marked {
		// The lock file, which is made now, would prove the mark of a directory that was emptied to the
		// next call, where this one fails.
		if err := Unmark(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	lock, err := store.LockFile(ctx, filepath.Join(dir, lockName))
	if err != nil {
		return nil, err
	}
	return &Mirror{dir: dir, lock: lock, marked: marked, leases: leases}, nil
}

func readMark(dir string) int {
	b, _, err := readFile(filepath.Join(dir, markName))
	number, whole := strings.CutSuffix(string(b), markText)
	n, ok := parseNumber(number)
	if err != nil || !whole || !ok {
		return Unproven
	}
	return int(n)
}

// ReadMirror is a mirror without host-local's lock, for reading alone; nil where there is no directory.
// An error wraps ErrUnreadable: which addresses host-local has given away is not known.
func ReadMirror(p lease.Pool) (*Mirror, error) {
	d, err := store.OpenDir(Dir(p))
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return &Mirror{dir: Dir(p), marked: IsMirrored(p), leases: readMark(Dir(p))}, d.Close()
}

// Locked reports whether the mirror has host-local's lock, so that it may write.
func (m *Mirror) Locked() bool { return m.lock != nil }

// Close gives the lock back.
func (m *Mirror) Close() {
	if m.lock != nil {
		m.lock.Close()
	}
}

// Mark returns how many leases have their files here by the directory's mark, or Unproven, and whether
// there is one.
func (m *Mirror) Mark() (leases int, marked bool) { return m.leases, m.marked }

// SetMark marks the directory as that of a pool with so many leases; Unproven where some may have no
// file. Where that fails no mark is left that proves anything.
func (m *Mirror) SetMark(leases int) error {
	if !m.Locked() {
		return errUnlocked
	}
	text := "not all" + markText
	if leases != Unproven {
		text = strconv.Itoa(leases) + markText
	}
	if err := writeFile(filepath.Join(m.dir, markName), text); err != nil {
		if readMark(m.dir) != Unproven {
			err = errors.Join(err, os.Remove(filepath.Join(m.dir, markName)))
		}
		return err
	}
	m.leases, m.marked = leases, true
	return nil
}

// IsWhole reports whether the directory proves that every lease of the pool has its file there, and
// cannot change meanwhile: the mirror has host-local's lock. What host-local gave to others since is
// more, not less.
func (m *Mirror) IsWhole() bool { return m.Locked() && m.IsComplete() }

// IsComplete is IsWhole without the lock.
func (m *Mirror) IsComplete() bool {
	if m.leases == Unproven {
		return false
	}
	addrs, err := m.Addresses()
	return err == nil && len(addrs) >= m.leases
}

func (m *Mirror) path(a netip.Addr) string { return filepath.Join(m.dir, a.String()) }

// AddressFile is what the file of an address says.
type AddressFile struct {
	Content  string    // without white space around it
	Modified time.Time // when it was written
}

// Read returns the file of an address, and whether there is one. What cannot be read is there: found
// is true beside every error.
func (m *Mirror) Read(a netip.Addr) (f AddressFile, found bool, err error) {
	b, modified, err := readFile(m.path(a))
	if errors.Is(err, fs.ErrNotExist) {
		return AddressFile{}, false, nil
	}
	return AddressFile{Content: string(bytes.TrimSpace(b)), Modified: modified}, true, err
}

// Has reports whether an address has a file. What cannot be looked at is there.
func (m *Mirror) Has(a netip.Addr) bool {
	_, err := os.Lstat(m.path(a))
	return !errors.Is(err, fs.ErrNotExist)
}

// Write brings the file of a lease in step with it.
func (m *Mirror) Write(l lease.Lease, now lease.Instant) error {
	if !m.Locked() {
		return errUnlocked
	}
	return writeFile(m.path(l.Address), Content(l, now))
}

// Remove removes the file of an address.
func (m *Mirror) Remove(a netip.Addr) error {
	if !m.Locked() {
		return errUnlocked
	}
	if err := os.Remove(m.path(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Content is what the file of a lease says.
func Content(l lease.Lease, now lease.Instant) string {
	if l.State == lease.Held {
		return Marker(l, now)
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

// Addresses returns the addresses that have a file.
func (m *Mirror) Addresses() ([]netip.Addr, error) {
	d, err := store.OpenDir(m.dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.dir, err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	var out []netip.Addr
	for _, name := range names {
		if a, err := netip.ParseAddr(name); err == nil && a.String() == name {
			out = append(out, a)
		}
	}
	return out, err
}

// Foreign is the lease behind one file of host-local's that is not ours: the
// container that it names, with its pod where libcni knows it.
func Foreign(n Node, p lease.Pool, addr netip.Addr, content string, now lease.Instant, newID func() string) Finding {
	claim, _ := parseFile(content)
	claim.Address, claim.Witness = addr, "host-local's file"
	claims := []Claim{claim}
	cached, _ := n.CacheEntry(p.Network, claim.ContainerID, claim.IfName)
	for _, c := range cached {
		if c.Address == addr {
			claims = append(claims, c)
		}
	}
	found := Decide(claims, p, now, time.Second, newID)
	return found[0] // a file alone is a bound lease of unknown owner
}
