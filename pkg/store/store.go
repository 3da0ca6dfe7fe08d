package store

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/boltfile"
	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/rundir"
)

// Dirs are the two directories of the store. State survives a reboot. Run is on a tmpfs and does
// not, so that its content is valid for this boot only.
type Dirs struct {
	State string // leases.db, 0600 in 0700
	Run   string // the lock, and what package rundir has
}

// DefaultDirs are the directories on a node.
var DefaultDirs = Dirs{State: "/var/lib/leasehold", Run: "/run/leasehold"}

// DirsFromEnv returns the directories of a program: tests and unusual hosts change DefaultDirs by
// environment variables.
func DirsFromEnv(getenv func(string) string) Dirs {
	return Dirs{
		State: cmp.Or(getenv("LEASEHOLD_STATE_DIR"), DefaultDirs.State),
		Run:   cmp.Or(getenv("LEASEHOLD_RUN_DIR"), DefaultDirs.Run),
	}
}

// Store is the lease store of one node. It keeps no file open between calls. The exported fields
// may be set before the first call.
type Store struct {
	// Timed is called after every Update and View has released the lock, for which it has waited so
	// long. It may be nil.
	Timed func(waited time.Duration)
	// BootID returns the id of the present boot, or "" if it cannot be read, as by default. The
	// loss of a store ends with its boot (Tx.Lost).
	BootID func() string

	dirs Dirs
}

// New returns the store in the given directories. It accesses no files; the first Update creates
// them.
func New(d Dirs) *Store { return &Store{dirs: d, BootID: func() string { return "" }} }

func (s *Store) path() string { return filepath.Join(s.dirs.State, "leases.db") }
func (s *Store) lock() string { return filepath.Join(s.dirs.Run, "lock") }

// machineIDFile has 32 hex digits, which are the machine's (machine-id(5)).
const machineIDFile = "/etc/machine-id"

// Path returns the path of the database.
func (s *Store) Path() string { return files.Canonical(s.path()) }

// MachineID returns an id of the machine: 16 hex digits, or "" if it has none.
func MachineID() string {
	b, _, err := files.ReadLinked(machineIDFile)
	id := strings.TrimSpace(string(b))
	if _, e := hex.DecodeString(id); err != nil || e != nil || len(id) != 32 {
		return "" // systemd writes "uninitialized" into images
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	return hex.EncodeToString(h.Sum(nil))
}

// Dirs returns the directories of the store.
func (s *Store) Dirs() Dirs { return s.dirs }

// Run returns the run directory.
func (s *Store) Run() rundir.Dir { return rundir.Dir{Path: s.dirs.Run, BootID: s.BootID} }

// errReplaced is returned by transact if the file was removed or replaced during the transaction,
// which is therefore lost.
var errReplaced = fmt.Errorf("%w: its file was replaced while in use", ErrIO)

// tries is how often a transaction is repeated whose file is replaced each time.
const tries = 3

// Update runs fn in a write transaction, of which there is one at a time on a node. The changes are
// committed and synced before Update returns. A transaction that changed nothing writes nothing. If
// fn returns an error nothing is committed, and Update returns the error. fn must not block.
//
// A store that is lost, or turns out to be damaged in the transaction, is moved to the directory
// lost and replaced by an empty one. Then fn runs again, and Tx.Lost returns the reason until the
// node's leases are recovered. fn also runs again if the file was replaced meanwhile.
//
// Update returns ErrBusy, ErrNewer or ErrIO. After ErrIO it is unknown whether the changes were
// written.
func (s *Store) Update(ctx context.Context, fn func(*Tx) error) error {
	ctx = files.WithMaxWait(ctx)
	unlock, err := s.acquire(ctx, syscall.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	for range tries {
		err = s.transact(ctx, true, fn)
		if errors.Is(err, ErrLost) {
			if e := s.replace(err); e != nil {
				return errors.Join(err, e)
			}
		} else if !errors.Is(err, errReplaced) {
			break
		}
	}
	return err
}

// View runs fn in a read transaction, which may overlap with others. It shows queued DELs as
// applied. fn runs again if the file is replaced meanwhile. If the store was never used, View does
// not run fn and returns nil. If the store is lost View returns ErrLost; it does not replace the
// store.
//
// flock(2) does not prefer writers: an ADD waits until no View overlaps with another one. So a
// process must not call View in a loop.
func (s *Store) View(ctx context.Context, fn func(*Tx) error) error {
	ctx = files.WithMaxWait(ctx)
	if !exists(s.dirs.State) && !exists(s.dirs.Run) {
		return nil // and the lock would create a directory
	}
	unlock, err := s.acquire(ctx, syscall.LOCK_SH)
	if err != nil {
		return err
	}
	defer unlock()
	for range tries {
		if err = s.transact(ctx, false, fn); !errors.Is(err, errReplaced) {
			break
		}
	}
	return err
}

// acquire acquires the store's lock, shared or exclusive (how), and returns the function that
// releases it.
func (s *Store) acquire(ctx context.Context, how int) (unlock func(), err error) {
	asked := time.Now()
	lock, err := files.Lock(ctx, s.lock(), how)
	waited := time.Since(asked)
	timed := func() {
		if s.Timed != nil {
			s.Timed(waited)
		}
	}
	if err != nil {
		timed()
		kind := ErrIO
		if errors.Is(err, files.ErrBusy) {
			kind = ErrBusy
		}
		return nil, fmt.Errorf("%w: %w", kind, err)
	}
	return func() {
		lock.Close()
		timed()
	}, nil
}

// open opens the store's file after examining it. Of a store that never existed a View gets no
// file, and an Update creates it. The mark (rundir.Dir.ReadMark) distinguishes a store that was
// removed from one that never existed.
func (s *Store) open(write bool) (*os.File, error) {
	f, err := boltfile.Examine(s.path(), write)
	if errors.Is(err, fs.ErrNotExist) {
		_, marked, unread := s.Run().ReadMark()
		switch {
		case unread != nil:
			return nil, fmt.Errorf("%w: %s is missing, and it is unknown whether it existed earlier in this boot: %w",
				ErrIO, s.path(), unread)
		case marked:
			return nil, fmt.Errorf("%w: %s is missing, but existed earlier in this boot", ErrLost, s.path())
		case !write:
			return nil, nil
		}
		if err := create(s.path(), "", ""); err != nil {
			return nil, err
		}
		f, err = boltfile.Examine(s.path(), write)
	}
	switch {
	case errors.Is(err, boltfile.ErrDamaged):
		return nil, fmt.Errorf("%w: %w", ErrLost, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrIO, err)
	case !write || s.Run().HasMark():
		return f, nil
	}
	if err = s.setMark(); err != nil {
		f.Close()
	}
	return f, err
}

func (s *Store) setMark() error {
	if err := s.Run().SetMark(); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}

// create creates an empty store at the path. lost is the reason why it replaces another store, in a
// boot; "" means that it is the first.
func create(path, lost, boot string) error {
	err := boltfile.Create(path, func(b *bolt.Tx) error {
		var failed error
		for _, name := range allBuckets {
			_, err := b.CreateBucket(name)
			failed = errors.Join(failed, err)
		}
		meta := b.Bucket(bucketMeta)
		return errors.Join(failed, meta.Put(metaLost, []byte(lost)), meta.Put(metaLostIn, []byte(boot)),
			meta.Put(metaID, fmt.Appendf(nil, "%016x", rand.Uint64())), meta.Put(metaFormat, []byte{format}))
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}

// exists reports whether something is at a path, or may be.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// transact runs fn in one transaction. The caller holds the lock. bbolt panics if the file is
// damaged; such a panic, and a page fault in its mapping, are returned as ErrLost.
func (s *Store) transact(ctx context.Context, write bool, fn func(*Tx) error) (err error) {
	f, err := s.open(write)
	if f == nil || err != nil {
		return err
	}
	var b *bolt.Tx
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = failed(f, fmt.Errorf("reading it failed (%.200v)", p))
			boltfile.Abandon(f, b)
		}
	}()
	db, err := boltfile.Open(f, !write, remaining(ctx))
	if err != nil {
		return fmt.Errorf("%w: %w", openError(err), err)
	}
	if b, err = db.Begin(write); err != nil {
		db.Close()
		return failed(f, err)
	}
	tx, err := newTx(b)
	if err == nil {
		tx.bootID = s.BootID
	}
	if err == nil && !write {
		s.showQueued(tx)
	}
	if err == nil {
		err = fn(tx)
	}
	if err == nil && tx.dirty {
		if e := b.Commit(); e != nil {
			err = failed(f, e)
		}
	}
	// Closing the file would wait for the end of a transaction that was not committed.
	if e := b.Rollback(); err == nil && e != nil && !errors.Is(e, berrors.ErrTxClosed) {
		err = fmt.Errorf("%w: %w", ErrIO, e)
	}
	if err == nil && !files.IsAt(f, f.Name()) {
		err = errReplaced
	}
	if e := db.Close(); err == nil && e != nil {
		err = fmt.Errorf("%w: %w", ErrIO, e)
	}
	if err == nil && tx.Then != nil {
		tx.Then()
	}
	return err
}

func openError(err error) error {
	if errors.Is(err, berrors.ErrTimeout) {
		return ErrBusy
	}
	if _, isOfKernel := errors.AsType[syscall.Errno](err); isOfKernel {
		return ErrIO
	}
	return ErrLost
}

// failed returns ErrLost if the file is damaged, and otherwise ErrIO: an error of the disk, or a
// panic, which then is a bug.
func failed(f *os.File, err error) error {
	if _, isOfDisk := errors.AsType[syscall.Errno](err); !isOfDisk {
		if found := boltfile.Prove(f.Name()); found != nil {
			return fmt.Errorf("%w: %w: %v", ErrLost, err, found)
		}
	}
	return fmt.Errorf("%w: %w", ErrIO, err)
}

func remaining(ctx context.Context) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		return max(time.Until(at), 60*time.Millisecond) // below 50 ms bbolt makes no attempt
	}
	return files.MaxWait
}

// Probe returns ErrIO if the store's directories cannot be written. It takes no lock.
func (s *Store) Probe() error {
	for _, dir := range []string{s.dirs.State, s.dirs.Run} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("%w: %w", ErrIO, err)
		}
		if err := unix.Access(dir, unix.W_OK); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrIO, dir, err)
		}
	}
	return nil
}
