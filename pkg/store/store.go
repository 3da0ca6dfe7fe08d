package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// MaxWait is the longest time for which a call waits for the store.
const MaxWait = 10 * time.Second

// Dirs are the two directories of the store. State survives a reboot. Run is on a tmpfs and does
// not, so that its content is valid for this boot only.
type Dirs struct {
	State string // leases.db, 0600 in 0700
	Run   string // lock, spool, announce queue, call log, and a file which shows that the store was used
}

// DefaultDirs are the directories on a node.
var DefaultDirs = Dirs{State: "/var/lib/leasehold", Run: "/run/leasehold"}

// Store is the lease store of one node. It keeps no file open between calls. The exported fields
// may be set before the first call.
type Store struct {
	Pause Pause        // which Updates and Views wait for before they take the lock; may be nil
	Timed func(Timing) // called after every Update and View has released the lock; may be nil
	// Committed is called when an Update has succeeded, before Options.Then; may be nil.
	Committed func()

	dirs    Dirs
	bad     atomic.Pointer[broken]
	reading readGate
}

// New returns the store in the given directories. It accesses no files; the first Update creates
// them.
func New(d Dirs) *Store { return &Store{dirs: d, reading: newReadGate()} }

func (s *Store) path() string { return filepath.Join(s.dirs.State, "leases.db") }
func (s *Store) lock() string { return filepath.Join(s.dirs.Run, "lock") }
func (s *Store) mark() string { return filepath.Join(s.dirs.Run, "used") }

// Dirs returns the directories of the store.
func (s *Store) Dirs() Dirs { return s.dirs }

// ErrReplaced is returned by Update if the file was removed or replaced during the transaction,
// which is therefore lost.
var ErrReplaced = fmt.Errorf("%w: its file was replaced while in use", ErrIO)

// Options are those of an Update.
type Options struct {
	Unpaused bool // there is no Pause, because the caller holds a lock which others wait for
	// Then is called if the transaction has succeeded, before the lock is released; may be nil.
	Then func()
}

// Update runs fn in a write transaction, of which there is one at a time on a node. The changes are
// committed and synced before Update returns. A transaction that changed nothing writes nothing. If
// fn returns an error nothing is committed, and Update returns the error. fn must not block.
//
// A store that is lost is moved to the directory lost and replaced by an empty one before fn runs.
// Tx.Lost returns the reason until the node's leases are recovered.
//
// Update returns ErrBusy, ErrNewer or ErrIO. After ErrIO it is unknown whether the changes were
// written. After ErrReplaced, and after ErrLost, which says that the file turned out to be damaged
// in the transaction, they were not, and the caller repeats the Update.
func (s *Store) Update(ctx context.Context, o Options, fn func(*Tx) error) error {
	ctx = WithMaxWait(ctx)
	w := stopwatch{asked: time.Now()}
	defer w.tell(s.Timed)
	pause := s.Pause
	if o.Unpaused {
		pause = nil
	}
	lock, err := s.take(ctx, pause, lockExclusive)
	if err != nil {
		return err
	}
	w.granted = time.Now()
	defer lock.Close()
	if err := s.transact(ctx, true, w.granted, fn); err != nil {
		return err
	}
	if s.Committed != nil {
		s.Committed()
	}
	if o.Then != nil {
		o.Then()
	}
	return nil
}

// View runs fn in a read transaction, which may overlap with those of other processes. It shows
// spooled DELs as done. The Views of one process take turns, so fn must not call View. fn runs
// again if the file is replaced meanwhile. If the store is lost View returns ErrLost; it does not
// replace the store.
func (s *Store) View(ctx context.Context, fn func(*Tx) error) error {
	ctx = WithMaxWait(ctx)
	w := stopwatch{asked: time.Now()}
	defer w.tell(s.Timed)
	p, err := s.reading.take(ctx, func() (io.Closer, error) { return s.take(ctx, s.Pause, lockShared) })
	if err != nil {
		return err
	}
	w.granted = time.Now()
	defer s.reading.give(p)
	for range 3 {
		if err = s.transact(ctx, false, w.granted, fn); !errors.Is(err, ErrReplaced) {
			return err
		}
	}
	return err
}

// open opens the store's file after examining it. An Update creates a store that never existed, and
// replaces one that is lost.
func (s *Store) open(write bool) (*os.File, health, error) {
	f, h, err := s.ready(write)
	if !write || !errors.Is(err, ErrLost) {
		return f, h, err
	}
	if e := s.replace(err); e != nil {
		return nil, h, errors.Join(err, e)
	}
	return s.ready(write)
}

// ready is open, but returns ErrLost if the store is lost. The mark, a file in the run directory
// that the first Update of a boot creates, distinguishes a store that was removed from one that
// never existed.
func (s *Store) ready(write bool) (*os.File, health, error) {
	f, h, err := openExamined(s.path(), write)
	_, unmarked := os.Stat(s.mark())
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case missing && unmarked == nil:
		return nil, h, fmt.Errorf("%w: %s is missing, but existed earlier in this boot", ErrLost, s.path())
	case missing && !errors.Is(unmarked, fs.ErrNotExist):
		return nil, h, fmt.Errorf("%w: %s is missing, and it is unknown whether it existed earlier in this boot: %w",
			ErrIO, s.path(), unmarked)
	case missing && !write:
		return nil, h, errEmpty
	case missing:
		if err = create(s.path(), ""); err == nil {
			f, h, err = openExamined(s.path(), write)
		}
	}
	if err == nil && write && unmarked != nil {
		err = s.setMark()
	}
	if err == nil {
		err = s.knownBroken(h)
	}
	if err != nil && f != nil {
		f.Close()
	}
	return f, h, err
}

// errEmpty is returned by View if the store was never used.
var errEmpty = errors.New("the lease store was never used")

// IsEmpty reports whether a View failed because the store was never used.
func IsEmpty(err error) bool { return errors.Is(err, errEmpty) }

func (s *Store) setMark() error {
	// Earlier versions kept a copy of all leases there, which they must not find out of date.
	os.Remove(filepath.Join(s.dirs.State, "snapshot.json"))
	f, err := openFile(s.mark(), os.O_CREATE|os.O_WRONLY)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return f.Close()
}

// transact runs fn in one transaction. The caller holds the lock, since the time locked. bbolt
// panics if the file is damaged; such a panic, and a page fault in its mapping, are returned as
// ErrLost.
func (s *Store) transact(ctx context.Context, write bool, locked time.Time, fn func(*Tx) error) (err error) {
	f, state, err := s.open(write)
	if err != nil {
		return err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = panicked(f.Name(), p)
			s.setBroken(f, state, err)
			abandon(f)
		}
	}()
	db, err := openBolt(f, !write, remaining(ctx))
	if err != nil {
		err = fmt.Errorf("%w: %w", openError(err), err)
		s.setBroken(f, state, err)
		return err
	}
	b, err := db.Begin(write)
	if err != nil {
		db.Close()
		return failed(f, err)
	}
	tx, err := newTx(b, state, locked)
	if err == nil && !write {
		s.showSpooled(tx)
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
	if err == nil && !isAt(f, f.Name()) {
		err = ErrReplaced
	}
	s.setBroken(f, state, err)
	if e := db.Close(); err == nil && e != nil {
		err = fmt.Errorf("%w: %w", ErrIO, e)
	}
	return err
}

func openBolt(f *os.File, readOnly bool, wait time.Duration) (*bolt.DB, error) {
	return bolt.Open(f.Name(), 0o600, &bolt.Options{
		ReadOnly:        readOnly,
		PreLoadFreelist: !readOnly,
		NoStatistics:    true,
		MaxSize:         maxSize,
		Timeout:         wait,
		OpenFile:        func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
}

// broken is a file that a transaction has found to be damaged, and its state then.
type broken struct {
	info os.FileInfo
	err  error
}

// setBroken remembers the file if err, which may be nil, is ErrLost. A file that made bbolt panic
// stays mapped until the process ends (see abandon). Therefore a long-running process must not open
// the file again unless it has changed.
func (s *Store) setBroken(f *os.File, h health, err error) {
	if !errors.Is(err, ErrLost) {
		return
	}
	if now, e := f.Stat(); e == nil {
		h.info = now // a commit may have changed it
	}
	s.bad.Store(&broken{h.info, err})
}

// knownBroken returns the error of setBroken if the file has not changed since, otherwise nil.
func (s *Store) knownBroken(h health) error {
	b, now := s.bad.Load(), h.info
	if b != nil && os.SameFile(b.info, now) && b.info.Size() == now.Size() && b.info.ModTime().Equal(now.ModTime()) {
		return b.err
	}
	return nil
}

// abandon unlocks and closes a file that made bbolt panic. It does not close the bolt.DB, because
// Close would block if the DB still holds its mutexes. The file stays mapped.
func abandon(f *os.File) {
	if f != nil {
		_ = flockEINTR(f, syscall.LOCK_UN)
		f.Close()
	}
}

func openError(err error) error {
	if errors.Is(err, berrors.ErrTimeout) {
		return ErrBusy
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return ErrIO
	}
	return ErrLost
}

// failed returns ErrIO for an error of the disk, and ErrLost if the file is damaged.
func failed(f *os.File, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		if found := prove(f.Name()); found != "" {
			return fmt.Errorf("%w: %w: %s", ErrLost, err, found)
		}
	}
	return fmt.Errorf("%w: %w", ErrIO, err)
}

func remaining(ctx context.Context) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		return max(time.Until(at), 60*time.Millisecond) // below 50 ms bbolt makes no attempt
	}
	return MaxWait
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
