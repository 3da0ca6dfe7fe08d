package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// DefaultBootIDFile is where Linux says which boot this is.
const DefaultBootIDFile = "/proc/sys/kernel/random/boot_id"

// Host is the node as its /proc and its paths show it.
type Host struct {
	proc       string
	bootIDFile string
}

// New returns the host behind a /proc.
func New(proc, bootIDFile string) *Host { return &Host{proc: proc, bootIDFile: bootIDFile} }

// BootID is the id of this boot, "" where it cannot be read: then no holder is
// ever dead by it.
func (h *Host) BootID() string {
	b, err := os.ReadFile(h.bootIDFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// ErrNotNetns is returned for a path where no network namespace lives.
var ErrNotNetns = errors.New("no living network namespace")

// Netns returns the network namespace that is mounted at the path, or that a
// /proc/PID/ns/net path leads to.
func (h *Host) Netns(path string) (lease.Netns, error) {
	n := lease.Netns{Path: path}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return n, fmt.Errorf("%w at %q: %w", ErrNotNetns, path, err)
	}
	defer f.Close()
	// On a file that is no namespace the request is unknown or fails.
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return n, fmt.Errorf("%w at %q: it is another kind of file", ErrNotNetns, path)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return n, fmt.Errorf("%w at %q: %w", ErrNotNetns, path, err)
	}
	n.Dev, n.Ino = uint64(st.Dev), st.Ino
	return n, nil
}

// Look is the quick look: a holder of another boot is dead, one whose path
// still leads to its namespace is alive. A path that does not is no proof of
// death, for the namespace may live on in a process.
func (h *Host) Look(holder lease.Holder, boot string) lease.Life {
	if holder.BootID != "" && boot != "" && holder.BootID != boot {
		return lease.Dead
	}
	if holder.Netns.Ino == 0 {
		return lease.Unknown
	}
	var st unix.Stat_t
	err := unix.Stat(holder.Netns.Path, &st)
	if err == nil && st.Ino == holder.Netns.Ino && uint64(st.Dev) == holder.Netns.Dev {
		return lease.Alive
	}
	return lease.Unknown
}

// Gone tells whether the path of the holder's namespace certainly leads to it
// no longer: nothing is there, or something else.
func (h *Host) Gone(holder lease.Holder) bool {
	if holder.Netns.Ino == 0 {
		return false
	}
	var st unix.Stat_t
	err := unix.Stat(holder.Netns.Path, &st)
	if err == nil {
		return st.Ino != holder.Netns.Ino || uint64(st.Dev) != holder.Netns.Dev
	}
	return err == syscall.ENOENT || err == syscall.ENOTDIR
}

// Processes are the network namespaces that the host's processes are in.
type Processes struct {
	inodes   map[uint64]bool
	complete bool // every process could be asked
}

// NewProcesses is a list made by hand, for simulated hosts.
func NewProcesses(complete bool, inodes ...uint64) Processes {
	p := Processes{inodes: map[uint64]bool{}, complete: complete}
	for _, ino := range inodes {
		p.inodes[ino] = true
	}
	return p
}

// Processes asks every process. It costs some microseconds for each, so it is
// for taking over and collecting only.
func (h *Host) Processes() Processes {
	p := Processes{inodes: map[uint64]bool{}}
	dir, err := os.Open(h.proc)
	if err != nil {
		return p
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	p.complete = err == nil && len(names) > 0
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		link, err := os.Readlink(filepath.Join(h.proc, name, "ns", "net"))
		if err != nil {
			// One that has ended meanwhile is in no namespace.
			p.complete = p.complete && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH))
			continue
		}
		var ino uint64
		if _, err := fmt.Sscanf(link, "net:[%d]", &ino); err != nil {
			p.complete = false
			continue
		}
		p.inodes[ino] = true
	}
	return p
}

// Have tells whether a process lives in the namespace. Dead here means only
// that none does.
func (p Processes) Have(n lease.Netns) lease.Life {
	switch {
	case n.Ino == 0:
		return lease.Unknown
	case p.inodes[n.Ino]:
		return lease.Alive
	case p.complete:
		return lease.Dead
	}
	return lease.Unknown
}
