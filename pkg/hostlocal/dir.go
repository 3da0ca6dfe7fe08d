package hostlocal

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Dir is host-local's directory of a pool, locked by host-local's own lock. It has a file for each
// address that has a lease, so that host-local may serve the next call and assigns no address
// twice. A call opens the directory once and closes it at its end.
//
// The file of a bound lease has host-local's content (container id, CR LF, interface;
// docs/facts.md, "One file for each address"). The file of a held lease contains a Hold, so that a
// repeated DEL that host-local serves does not find its container id. Nothing is synced, because
// the store is authoritative.
type Dir struct {
	Mark Mark // when the directory was opened, or set since

	dir  string
	lock *os.File // host-local's; nil if the directory is only read (OpenUnlocked)
	read map[netip.Addr]reading
}

// Owner identifies the node that keeps the files of a directory, by the ids of its store and of the
// machine, and by the path of the store. They are "" if they are not known.
type Owner struct{ Store, Machine, Path string }

// IsOther reports whether the owners are certainly two nodes: of one node a store may be lost and
// made again, or moved, and a machine may be cloned, or get another id.
func (o Owner) IsOther(than Owner) bool {
	differ := func(a, b string) bool { return a != "" && b != "" && a != b }
	if !differ(o.Store, than.Store) || differ(o.Machine, than.Machine) {
		return differ(o.Store, than.Store)
	}
	_, err := os.Stat(o.Path)
	return differ(o.Path, than.Path) && err == nil
}

// The mark is a file that leasehold adds to a directory once it has imported the pool and written
// the files of all leases, or with another text if it could not write all. The second line is the
// Owner. host-local ignores the mark, because its name is not an address.
const (
	markName  = ".leasehold"
	markAll   = "all leases have their files here"
	markShort = "not all leases have their files here"
	lockName  = "lock" // host-local's
)

// Mark is what the mark of a directory says; zero if there is none (IsMarked).
type Mark struct {
	Exists   bool
	Complete bool // the files of all leases were written. Somebody may have removed some
	Owner    Owner
}

// Path returns the directory in which host-local keeps the files of a pool.
func Path(p lease.Pool) string { return filepath.Join(p.DataDir, p.Network) }

// IsMarked reports whether the pool's directory has a mark, that is, whether leasehold has imported
// the pool and keeps its files. It reports false if host-local's lock file is missing, because then
// somebody has removed everything but the mark.
func IsMarked(p lease.Pool) bool {
	for _, name := range []string{markName, lockName} {
		if _, err := os.Lstat(filepath.Join(Path(p), name)); err != nil {
			return false
		}
	}
	return true
}

// MarkedIn returns the pools in a data directory whose directories have a mark.
func MarkedIn(dataDir string) (out []lease.Pool) {
	names, _ := files.List(dataDir) // none can be used where the directory cannot be read
	for _, name := range names {
		if p := (lease.Pool{DataDir: files.Canonical(dataDir), Network: name}); IsMarked(p) {
			out = append(out, p)
		}
	}
	return out
}

// Unmark removes the mark of a directory whose files leasehold no longer keeps.
func Unmark(p lease.Pool) error { return os.Remove(filepath.Join(Path(p), markName)) }

// Exists reports whether host-local has a directory of the pool.
func Exists(p lease.Pool) bool {
	info, err := os.Stat(Path(p))
	return err == nil && info.IsDir() && p.Network != ""
}

// IsEmpty reports whether host-local's directory of a pool has nothing but the lock file.
func IsEmpty(p lease.Pool) bool {
	names, err := files.List(Path(p))
	return err == nil && !slices.ContainsFunc(names, func(name string) bool { return name != lockName })
}

// Missing returns those of the leases whose files are missing, in directories that have a mark and
// can be read. It lists each directory once, without the lock.
func Missing(leases []lease.Lease) (out []lease.Lease) {
	listed := map[lease.Pool][]string{} // sorted
	for _, l := range leases {
		names, known := listed[l.Pool]
		if !known && IsMarked(l.Pool) {
			if all, err := files.List(Path(l.Pool)); err == nil {
				names = all
			}
		}
		listed[l.Pool] = names
		if _, found := slices.BinarySearch(names, l.Address.String()); names != nil && !found {
			out = append(out, l)
		}
	}
	return out
}

// Open creates the directory if it is missing, and acquires host-local's lock, which Close
// releases. It waits for the lock until ctx is done, at most files.MaxWait, and then returns
// files.ErrBusy.
func Open(ctx context.Context, p lease.Pool) (*Dir, error) {
	dir := Path(p)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	mark := ReadMark(p)
	if !mark.Exists {
		// A mark without the lock file is what is left where a user has removed all other files. It
		// is removed before Lock creates the lock file. Otherwise, if the program ended before
		// SetMark, IsMarked would report true to the next one.
		if err := Unmark(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	lock, err := files.Lock(ctx, filepath.Join(dir, lockName), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return &Dir{Mark: mark, dir: dir, lock: lock, read: map[netip.Addr]reading{}}, nil
}

// ProbeLock returns the error with which Open would fail because the lock file cannot be opened or
// created. It does neither.
func ProbeLock(p lease.Pool) error {
	lock := filepath.Join(Path(p), lockName)
	f, err := os.OpenFile(lock, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err == nil {
		return f.Close()
	}
	if to, e := os.Readlink(lock); e == nil && errors.Is(err, fs.ErrNotExist) { // it is created where the link leads
		if !filepath.IsAbs(to) {
			to = filepath.Join(Path(p), to)
		}
		return access(filepath.Dir(to))
	}
	for dir := Path(p); errors.Is(err, fs.ErrNotExist); dir = filepath.Dir(dir) {
		_, e := os.Lstat(dir)
		if err = access(dir); e == nil {
			break // no directory is created where a link leads
		}
	}
	return err
}

// access returns an error if the directory cannot be written.
func access(dir string) error {
	return os.NewSyscallError("write to "+dir, unix.Access(dir, unix.W_OK))
}

// ReadMark returns the mark of a pool's directory.
func ReadMark(p lease.Pool) (m Mark) {
	b, _, err := files.Read(filepath.Join(Path(p), markName))
	if _, e := os.Lstat(filepath.Join(Path(p), lockName)); e != nil || errors.Is(err, fs.ErrNotExist) {
		return Mark{}
	}
	text, rest, _ := strings.Cut(string(b), "\n")
	m.Exists, m.Complete = true, err == nil && text == markAll
	words := strings.SplitN(strings.TrimSuffix(rest, "\n"), " ", 3)
	if isOurs := text == markAll || text == markShort; isOurs && len(words) == 3 {
		m.Owner = Owner{words[0], words[1], words[2]}
	}
	return m
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
	return &Dir{Mark: ReadMark(p), dir: Path(p), read: map[netip.Addr]reading{}}, d.Close()
}

// Close releases the lock, if the directory is locked.
func (d *Dir) Close() { d.lock.Close() }

// IsAt reports whether the path of a pool leads to the directory, which is locked.
func (d *Dir) IsAt(p lease.Pool) bool { return files.IsAt(d.lock, filepath.Join(Path(p), lockName)) }

// SetMark marks the directory as one of owner. all reports whether it has the files of all leases.
// If SetMark cannot write the mark, it removes one that says so. The directory is locked.
func (d *Dir) SetMark(all bool, owner Owner) error {
	mark, text := Mark{true, all, owner}, markShort
	if all {
		text = markAll
	}
	if d.Mark == mark {
		return nil
	}
	if text += "\n"; owner.Store != "" {
		text += owner.Store + " " + owner.Machine + " " + owner.Path + "\n"
	}
	if err := files.Write(filepath.Join(d.dir, markName), text); err != nil {
		if d.Mark.Complete {
			err = errors.Join(err, os.Remove(filepath.Join(d.dir, markName)))
		}
		return err
	}
	d.Mark = mark
	return nil
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

// Write writes the file of a lease. That of a bound lease gets the time at which the lease was
// bound, even if it is written later: a later file that names the holder may be host-local's. The
// directory is locked.
func (d *Dir) Write(l lease.Lease, now lease.Instant) error {
	delete(d.read, l.Address)
	err := files.Write(d.FilePath(l.Address), Content(l, now))
	if err == nil && l.State == lease.Bound {
		_ = os.Chtimes(d.FilePath(l.Address), l.BoundAt.Wall, l.BoundAt.Wall)
	}
	return err
}

// Remove removes the file of an address, if there is one. The directory is locked.
func (d *Dir) Remove(a netip.Addr) error {
	delete(d.read, a)
	if err := os.Remove(d.FilePath(a)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Addresses returns the addresses that have a file, in the order of their names.
func (d *Dir) Addresses() ([]netip.Addr, error) {
	all, err := files.Names(d.dir)
	var out []netip.Addr
	for _, name := range all {
		if a, ok := ParseAddr(name); ok && a.String() == name {
			out = append(out, a)
		}
	}
	return out, err
}
