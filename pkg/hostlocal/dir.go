package hostlocal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/names"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Dir is host-local's own directory of a pool, under host-local's own lock: a file for each address
// that has a lease, so that host-local may serve the next call and assigns nothing twice. It is
// opened for one call and closed.
//
// Files of bound leases have host-local's content (container id, CR LF, interface; docs/facts.md,
// "One file for each address"). A held address keeps its file, with an id that no container can
// have (see Hold): a repeated DEL that host-local serves must not find it. Nothing is synced: the
// store is authoritative, and these files may be late.
//
// A file is removed before the store forgets its lease, and made after the store knows it. So what
// a crash leaves behind is a lease without a file, which is made again, and never a file without a
// lease. A file that names another container than the lease that will be committed becomes a mark
// before.
type Dir struct {
	dir    string
	lock   *os.File // nil if host-local's lock cannot be opened: nothing is written
	marked bool
	leases int // that the mark names; Unproven if it names none
	read   map[netip.Addr]reading

	removed map[netip.Addr]bool // by Remove, and still there
}

var errUnlocked = errors.New("host-local's lock cannot be opened, so nothing is written")

// The mark is a file of ours in a directory that is kept in step with the store. It says how many
// leases have a file there, so that a directory from which some were removed, or in which some
// could not be written, is not taken for a complete one. host-local ignores it, because its name is
// no address.
//
// Older versions marked a directory once, whatever became of its files: their mark proves nothing.
const (
	markName = ".leasehold"
	markText = " leases have their files here\n"
	lockName = "lock" // host-local's
)

// Unproven is the number of leases in a mark that proves nothing.
const Unproven = -1

// Path returns the directory in which host-local keeps the files of a pool.
func Path(p lease.Pool) string { return filepath.Join(p.DataDir, p.Network) }

// IsMarked reports whether the pool's directory was brought in step with the
// store and not removed since. If host-local's lock file is missing, somebody removed everything
// but the mark.
func IsMarked(p lease.Pool) bool {
	for _, name := range []string{markName, lockName} {
		if _, err := os.Lstat(filepath.Join(Path(p), name)); err != nil {
			return false
		}
	}
	return true
}

// Unmark removes the mark of a directory that is no longer kept in step.
func Unmark(p lease.Pool) error { return os.Remove(filepath.Join(Path(p), markName)) }

// Exists reports whether host-local has a directory of the pool.
func Exists(p lease.Pool) bool {
	info, err := os.Stat(Path(p))
	return err == nil && info.IsDir() && p.Network != ""
}

// FileNames returns the names in the pool's directory, read without the lock. It returns nil if the
// directory is not kept in step with the store, or cannot be read.
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

// Open acquires host-local's lock, and creates the directory if it is missing. It returns
// store.ErrBusy if ctx is done before, or after store.MaxWait.
func Open(ctx context.Context, p lease.Pool) (*Dir, error) {
	dir := Path(p)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	marked, leases := IsMarked(p), readMark(dir)
	if !marked {
		// The lock file, which is made now, would prove the mark of a directory that was
		// emptied to the next call, where this one fails.
		if err := Unmark(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	lock, err := store.LockFile(ctx, filepath.Join(dir, lockName))
	if err != nil {
		return nil, err
	}
	return &Dir{dir: dir, lock: lock, marked: marked, leases: leases, read: map[netip.Addr]reading{},
		removed: map[netip.Addr]bool{}}, nil
}

func readMark(dir string) int {
	b, _, err := files.Read(filepath.Join(dir, markName))
	number, whole := strings.CutSuffix(string(b), markText)
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
	dir := &Dir{dir: Path(p), marked: IsMarked(p), leases: readMark(Path(p)), read: map[netip.Addr]reading{},
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

// Mark returns how many leases have their files here by the directory's mark, or Unproven, and
// reports whether there is a mark.
func (d *Dir) Mark() (leases int, marked bool) { return d.leases, d.marked }

// SetMark writes the mark: how many leases have their files here, or Unproven if some may have
// none. If it fails it leaves no mark that proves anything.
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
	d.leases, d.marked = leases, true
	return nil
}

// IsWhole reports whether the directory proves that every lease of the pool has its file there, and
// cannot change meanwhile, because it is locked. Files of addresses that host-local has assigned
// since are more, not less.
func (d *Dir) IsWhole() bool { return d.Locked() && d.IsComplete() }

// IsComplete reports whether the directory proves that every lease of the pool has its file there.
// It may change meanwhile.
func (d *Dir) IsComplete() bool {
	if d.leases == Unproven {
		return false
	}
	addrs, err := d.Addresses()
	return err == nil && len(addrs) >= d.leases
}

// FilePath returns the path of the file of an address.
func (d *Dir) FilePath(a netip.Addr) string { return filepath.Join(d.dir, a.String()) }

// File is the file of an address.
type File struct {
	Content  string    // without white space around it
	Modified time.Time // when it was written
}

// Read returns the file of an address, and reports whether there is one. A file that cannot be read
// is there: found is true beside every error. A file is read once: until Write or Remove the answer
// stays the same.
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

// Has reports whether an address has a file. A file that cannot be read is there.
func (d *Dir) Has(a netip.Addr) bool {
	_, err := os.Lstat(d.FilePath(a))
	return !errors.Is(err, fs.ErrNotExist) && !d.removed[a]
}

// Write brings the file of a lease in step with it.
func (d *Dir) Write(l lease.Lease, now lease.Instant) error {
	if !d.Locked() {
		return errUnlocked
	}
	delete(d.read, l.Address)
	delete(d.removed, l.Address)
	return files.Write(d.FilePath(l.Address), Content(l, now))
}

// Remove has Flush remove the file of an address. From now on there is none for Read, Has and
// Addresses.
func (d *Dir) Remove(a netip.Addr) { d.removed[a] = true }

// Reset undoes every Remove since the last Flush.
func (d *Dir) Reset() { clear(d.removed) }

// Flush removes the files.
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
	f, err := files.OpenDir(d.dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.dir, err)
	}
	defer f.Close()
	all, err := f.Readdirnames(-1)
	slices.Sort(all)
	var out []netip.Addr
	for _, name := range all {
		if a, ok := names.ParseAddr(name); ok && a.String() == name && !d.removed[a] {
			out = append(out, a)
		}
	}
	return out, err
}
