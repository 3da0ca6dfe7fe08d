package explore

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// image is everything that is on a node's disk: the pages of the store, and all other files by
// their paths below the simulation's directory.
type image struct {
	Store []byte // nil where there is no store
	Files map[string]file
}

type file struct {
	Content string
	Wall    int64 // when it was written, in nanoseconds of the simulated wall clock since 1970
}

func (i image) clone() image { return image{i.Store, maps.Clone(i.Files)} }

var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	must(err)
	return w
}}

// pack compresses an image.
func (i image) pack() []byte {
	var out bytes.Buffer
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&out)
	if err := errors.Join(gob.NewEncoder(w).Encode(i), w.Close()); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// unpack undoes pack.
func unpack(b []byte) image {
	var i image
	if err := gob.NewDecoder(flate.NewReader(bytes.NewReader(b))).Decode(&i); err != nil {
		panic(err)
	}
	if i.Files == nil {
		i.Files = map[string]file{}
	}
	return i
}

// The parts of bbolt's file format that are needed to know how many pages are in use.
const (
	pageSize     = 4096
	metaOffset   = 16 // after the header of a page
	metaPages    = metaOffset + 40
	metaTx       = metaOffset + 48
	minStoreSize = 128 << 10 // the file's size; a new store's is larger, and takes longer to read
)

// newestMeta returns the offset of the head page of the last transaction.
func newestMeta(head []byte) int {
	le := binary.LittleEndian
	if le.Uint64(head[pageSize+metaTx:]) > le.Uint64(head[metaTx:]) {
		return pageSize
	}
	return 0
}

// disk is a directory on a tmpfs that holds one image at a time.
type disk struct {
	root    string
	current image // as of the last capture

	events  int // inotify
	watched map[int32]string
}

// Paths below the root.
const (
	stateDir  = "state"
	runDir    = "run"
	queueDir  = "run/queue"
	netsDir   = "networks"
	mirrorDir = netsDir + "/" + network // host-local's files
	cacheDir  = "cache"                 // libcni's
	storeFile = "state/leases.db"
	markFile  = "run/used"
	lockFile  = "run/lock"

	completeMark = ".leasehold" // in host-local's directory, if every lease has its file there
)

func newDisk(root string) (*disk, error) {
	d := &disk{root: root, current: image{Files: map[string]file{}}, watched: map[int32]string{}}
	var err error
	if d.events, err = unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC); err != nil {
		return nil, err
	}
	for _, dir := range []string{stateDir, runDir, queueDir, mirrorDir} {
		if err := os.MkdirAll(d.path(dir), 0o700); err != nil {
			return nil, err
		}
		w, err := unix.InotifyAddWatch(d.events, d.path(dir),
			unix.IN_CREATE|unix.IN_MODIFY|unix.IN_DELETE|unix.IN_MOVED_TO)
		if err != nil {
			return nil, err
		}
		d.watched[int32(w)] = dir
	}
	return d, nil
}

func (d *disk) path(name string) string { return filepath.Join(d.root, name) }

func (d *disk) close() {
	unix.Close(d.events)
	os.RemoveAll(d.root)
}

// must panics on an error of the machine that runs the test.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// restore writes an image to the disk, as far as it differs from the current one.
func (d *disk) restore(to image) {
	for name := range d.current.Files {
		if _, exists := to.Files[name]; !exists {
			must(os.Remove(d.path(name)))
		}
	}
	for name, f := range to.Files {
		if d.current.Files[name] != f || !has(d.current.Files, name) {
			must(os.WriteFile(d.path(name), []byte(f.Content), 0o600))
			d.setTime(name, f.Wall)
		}
	}
	d.restoreStore(to.Store)
	d.current = to.clone()
	d.operations() // discards those of restore
}

func has[V any](m map[string]V, k string) bool { _, ok := m[k]; return ok }

func (d *disk) setTime(name string, wall int64) {
	at := unix.NsecToTimespec(wall)
	must(unix.UtimesNanoAt(unix.AT_FDCWD, d.path(name), []unix.Timespec{at, at}, 0))
}

func (d *disk) restoreStore(to []byte) {
	from := d.current.Store
	if to == nil && from == nil {
		return
	}
	if to == nil {
		must(os.Remove(d.path(storeFile)))
		return
	}
	f, err := os.OpenFile(d.path(storeFile), os.O_RDWR|os.O_CREATE, 0o600)
	must(err)
	defer f.Close()
	must(f.Truncate(max(minStoreSize, int64(len(to)))))
	for at := 0; at < len(to); at += pageSize {
		if at < len(from) && bytes.Equal(from[at:][:pageSize], to[at:][:pageSize]) {
			continue
		}
		_, err := f.WriteAt(to[at:][:pageSize], int64(at))
		must(err)
	}
}

// started is before any file is written.
var started = machineTime().Add(-time.Minute)

// machineTime returns the time of the files that the code under test writes. time.Now does not: it
// returns that of the synctest bubble of an event.
func machineTime() time.Time {
	var now unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_REALTIME, &now))
	return time.Unix(now.Unix())
}

// capture reads the disk. Files that were written since the last capture get the simulated wall
// clock's time, unless the plugin has given them one of that clock.
func (d *disk) capture(now time.Time) image {
	files := map[string]file{}
	for _, dir := range d.watched {
		entries, err := os.ReadDir(d.path(dir))
		must(err)
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			if e.IsDir() || name == storeFile {
				continue
			}
			files[name] = d.read(name, now)
		}
	}
	d.current = image{d.readStore(), files}
	must(os.RemoveAll(d.path("state/lost")))
	must(os.RemoveAll(d.path("run/announce")))
	return d.current.clone()
}

func (d *disk) read(name string, now time.Time) file {
	var st unix.Stat_t
	must(unix.Stat(d.path(name), &st))
	was, known := d.current.Files[name]
	wall := st.Mtim.Nano()
	if known && was.Wall == wall && int(st.Size) == len(was.Content) {
		return was
	}
	b, err := os.ReadFile(d.path(name))
	must(err)
	if at := time.Unix(0, wall); at.Before(started) || at.After(machineTime()) {
		return file{string(b), wall}
	}
	d.setTime(name, now.UnixNano())
	return file{string(b), now.UnixNano()}
}

func (d *disk) readStore() []byte {
	f, err := os.Open(d.path(storeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must(err)
	defer f.Close()
	head := make([]byte, 2*pageSize)
	_, err = io.ReadFull(f, head)
	must(err)
	if d.current.Store != nil && bytes.Equal(head, d.current.Store[:len(head)]) {
		return d.current.Store // a commit writes a head page
	}
	pages := binary.LittleEndian.Uint64(head[newestMeta(head)+metaPages:])
	out := make([]byte, pages*pageSize)
	_, err = f.ReadAt(out, 0)
	must(err)
	return out
}

// diskOperation is one change of a file as the kernel saw it.
type diskOperation struct {
	kind operationKind
	name string
}

type operationKind string

const (
	commits operationKind = "commits"
	creates operationKind = "creates"
	writes  operationKind = "writes"
	removes operationKind = "removes"
)

// operations returns the changes since the last call, in their order.
func (d *disk) operations() []diskOperation {
	var out []diskOperation
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(d.events, buf)
		if err == unix.EAGAIN {
			return out
		}
		must(err)
		for at := 0; at < n; {
			le := binary.LittleEndian
			w, mask, length := int32(le.Uint32(buf[at:])), le.Uint32(buf[at+4:]), int(le.Uint32(buf[at+12:]))
			if mask&unix.IN_Q_OVERFLOW != 0 {
				panic("too many file operations to follow")
			}
			name := strings.TrimRight(string(buf[at+16:][:length]), "\x00")
			op, ok := operationOf(mask, filepath.Join(d.watched[w], name))
			if ok && (len(out) == 0 || out[len(out)-1] != op) {
				out = append(out, op)
			}
			at += 16 + length
		}
	}
}

// operationOf translates an inotify event. It ignores what is not part of a node's state: locks,
// files that are being opened, and temporary files of the store.
func operationOf(mask uint32, name string) (diskOperation, bool) {
	base := filepath.Base(name)
	ignored := base == "lock" || base == "lost" || base == "announce" || strings.HasSuffix(base, ".new") ||
		mask&unix.IN_ISDIR != 0
	switch {
	case ignored:
		return diskOperation{}, false
	case name == storeFile && mask&(unix.IN_MODIFY|unix.IN_MOVED_TO) != 0:
		return diskOperation{commits, name}, true
	case name == storeFile:
		return diskOperation{}, false
	case mask&unix.IN_CREATE != 0:
		return diskOperation{creates, name}, true
	case mask&(unix.IN_MODIFY|unix.IN_MOVED_TO) != 0:
		return diskOperation{writes, name}, true
	case mask&unix.IN_DELETE != 0:
		return diskOperation{removes, name}, true
	}
	return diskOperation{}, false
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
