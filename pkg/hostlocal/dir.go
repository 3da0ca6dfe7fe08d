package hostlocal

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/names"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Dir is host-local's directory of a pool, locked by host-local's own lock. It has a file for each
// address that has a lease, so that host-local may serve the next call and assigns no address
// twice. A call opens the directory once and closes it at its end.
//
// The file of a bound lease has host-local's content (container id, CR LF, interface;
// docs/facts.md, "One file for each address"). The file of a held lease contains a Hold, so that a
// repeated DEL that host-local serves does not find its container id. Nothing is synced, because
// the store is authoritative.
//
// Remove must be called before the commit that removes a lease, and Write after the commit that
// adds or changes one. Then a crash leaves at most a lease without a file, which a later call
// writes, and never a file without a lease. If one commit removes a lease and adds another one of
// the same address, Keep must be called before Flush: the mark has the same number before and after
// that commit, and would not show that the file is missing. If a file names a container that the
// new lease does not, it is overwritten with a Hold before the commit.
type Dir struct {
	dir    string
	lock   *os.File // nil if host-local's lock cannot be opened: nothing is written
	marked bool
	count  int // the number of leases in the mark, or Unproven
	read   map[netip.Addr]reading

	removed map[netip.Addr]bool // addresses that Remove was called for and Flush was not
}

var errUnlocked = errors.New("host-local's lock cannot be opened, so nothing is written")

// The mark is a file that leasehold adds to a directory which it keeps in step with the store. It
// contains the number of leases that have a file there, so that a directory from which files were
// removed, or in which some could not be written, is not taken for a complete one. host-local
// ignores the mark, because its name is not an address.
//
// The mark of older versions contains no number, and proves nothing.
const (
	markName = ".leasehold"
	markText = " leases have their files here\n"
	lockName = "lock" // host-local's
)

// Unproven is the number of leases in a mark that proves nothing.
const Unproven = -1

// Path returns the directory in which host-local keeps the files of a pool.
func Path(p lease.Pool) string { return filepath.Join(p.DataDir, p.Network) }

// IsMarked reports whether the pool's directory has a mark, that is, whether leasehold keeps it in
// step with the store. It reports false if host-local's lock file is missing, because then somebody
// has removed everything but the mark.
func IsMarked(p lease.Pool) bool {
	for _, name := range []string{markName, lockName} {
		if _, err := os.Lstat(filepath.Join(Path(p), name)); err != nil {
			return false
		}
	}
	return true
}

// Unmark removes the mark of a directory that is no longer kept in step with the store.
func Unmark(p lease.Pool) error { return os.Remove(filepath.Join(Path(p), markName)) }

// Exists reports whether host-local has a directory of the pool.
func Exists(p lease.Pool) bool {
	info, err := os.Stat(Path(p))
	return err == nil && info.IsDir() && p.Network != ""
}

// FileNames returns the names of the files in the pool's directory, read without the lock. It
// returns nil if the directory has no mark or cannot be read.
func FileNames(p lease.Pool) map[string]bool {
	if !IsMarked(p) {
		return nil
	}
	all, err := files.List(Path(p))
	if err != nil {
		return nil
	}
	out := make(map[string]bool, len(all))
	for _, name := range all {
		out[name] = true
	}
	return out
}

// Open creates the directory if it is missing, and acquires host-local's lock, which Close
// releases. It waits for the lock until ctx is done, at most store.MaxWait, and then returns
// store.ErrBusy.
func Open(ctx context.Context, p lease.Pool) (*Dir, error) {
	dir := Path(p)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	marked, count := IsMarked(p), readMark(dir)
	if !marked {
		// A mark without the lock file is what is left where a user has removed all other files. It
		// is removed before LockFile creates the lock file. Otherwise, if the program ended before
		// SetMark, IsMarked would report true to the next one.
		if err := Unmark(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	lock, err := store.LockFile(ctx, filepath.Join(dir, lockName))
	if err != nil {
		return nil, err
	}
	return &Dir{dir: dir, lock: lock, marked: marked, count: count, read: map[netip.Addr]reading{},
		removed: map[netip.Addr]bool{}}, nil
}

// readMark returns the number of leases in the mark of a directory, or Unproven.
func readMark(dir string) int {
	b, _, err := files.Read(filepath.Join(dir, markName))
	number, whole := strings.CutSuffix(strings.TrimRight(string(b), "\n")+"\n", markText)
	n, ok := parseNumber(number)
	if err != nil || !whole || !ok {
		return Unproven
	}
	return int(n)
}

// OpenUnlocked opens the directory without host-local's lock, for reading. It returns nil if there
// is none.
func OpenUnlocked(p lease.Pool) (*Dir, error) {
	d, err := files.OpenDir(Path(p))
	if files.IsMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dir := &Dir{dir: Path(p), marked: IsMarked(p), count: readMark(Path(p)), read: map[netip.Addr]reading{},
		removed: map[netip.Addr]bool{}}
	return dir, d.Close()
}

// Locked reports whether the directory is locked, so that it may be written.
func (d *Dir) Locked() bool { return d.lock != nil }

// Close releases the lock.
func (d *Dir) Close() {
	if d.lock != nil {
		d.lock.Close()
	}
}

// Mark returns the number of leases that the directory's mark contains, and whether the directory
// is marked (IsMarked), as they were when it was opened or SetMark succeeded. The number is
// Unproven without a mark, and for a mark without a number.
func (d *Dir) Mark() (leases int, marked bool) { return d.count, d.marked }

// SetMark writes a mark with the given number of leases, all of which must have a file in the
// directory, or with Unproven if files may be missing. If it cannot write the file, it removes a
// mark with a number, because that number may be wrong by now. It does nothing without the lock.
func (d *Dir) SetMark(leases int) error {
	if !d.Locked() {
		return errUnlocked
	}
	text := "not all" + markText
	if leases != Unproven {
		text = strconv.Itoa(leases) + markText
	}
	if err := files.Write(filepath.Join(d.dir, markName), text); err != nil {
		if readMark(d.dir) != Unproven {
			err = errors.Join(err, os.Remove(filepath.Join(d.dir, markName)))
		}
		return err
	}
	d.count, d.marked = leases, true
	return nil
}

// IsWhole reports whether the directory is complete (IsComplete) and locked, so that it stays
// complete until Close. There may be more files than leases, because host-local may have assigned
// addresses.
func (d *Dir) IsWhole() bool { return d.Locked() && d.IsComplete() }

// IsComplete reports whether the mark proves that every lease of the pool has its file in the
// directory.
func (d *Dir) IsComplete() bool {
	if d.count == Unproven {
		return false
	}
	addrs, err := d.Addresses()
	return err == nil && len(addrs) >= d.count
}

// FilePath returns the path of the file of an address.
func (d *Dir) FilePath(a netip.Addr) string { return filepath.Join(d.dir, a.String()) }

// File is the file of an address.
type File struct {
	Content  string    // without white space around it
	Modified time.Time // when it was written
}

// Read returns the file of an address, and whether there is one. For a file that cannot be read it
// returns true and the error. It reads each file only once, so that the result does not change
// until Write or Remove.
func (d *Dir) Read(a netip.Addr) (f File, found bool, err error) {
	if d.removed[a] {
		return File{}, false, nil
	}
	r, known := d.read[a]
	if !known {
		r = d.readFile(a)
		d.read[a] = r
	}
	return r.file, r.found, r.err
}

// reading is what Read returns for an address.
type reading struct {
	file  File
	found bool
	err   error
}

func (d *Dir) readFile(a netip.Addr) reading {
	b, modified, err := files.Read(d.FilePath(a))
	if errors.Is(err, fs.ErrNotExist) {
		return reading{}
	}
	return reading{File{Content: string(bytes.TrimSpace(b)), Modified: modified}, true, err}
}

// Has reports whether an address has a file, which may be unreadable.
func (d *Dir) Has(a netip.Addr) bool {
	_, err := os.Lstat(d.FilePath(a))
	return !errors.Is(err, fs.ErrNotExist) && !d.removed[a]
}

// Write writes the file of a lease.
func (d *Dir) Write(l lease.Lease, now lease.Instant) error {
	if !d.Locked() {
		return errUnlocked
	}
	delete(d.read, l.Address)
	delete(d.removed, l.Address)
	return files.Write(d.FilePath(l.Address), Content(l, now))
}

// Remove marks the file of an address for removal by Flush. Read, Has and Addresses no longer show
// the file.
func (d *Dir) Remove(a netip.Addr) { d.removed[a] = true }

// Keep undoes Remove for one address.
func (d *Dir) Keep(a netip.Addr) { delete(d.removed, a) }

// Reset undoes every Remove since the last Flush.
func (d *Dir) Reset() { clear(d.removed) }

// Flush removes the files that Remove has marked.
func (d *Dir) Flush() (err error) {
	for a := range d.removed {
		if !d.Locked() {
			return errUnlocked
		}
		delete(d.read, a)
		if e := os.Remove(d.FilePath(a)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	clear(d.removed)
	return err
}

// Addresses returns the addresses that have a file, in the order of their names.
func (d *Dir) Addresses() ([]netip.Addr, error) {
	all, err := files.Names(d.dir)
	var out []netip.Addr
	for _, name := range all {
		if a, ok := names.ParseAddr(name); ok && a.String() == name && !d.removed[a] {
			out = append(out, a)
		}
	}
	return out, err
}
