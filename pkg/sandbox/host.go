package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
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
	mounts     string // the process whose mounts the paths lead through, as /proc names it

	proven *sync.Map // see proveMounts
}

// New returns the host behind a /proc, seen through this process's own mounts.
func New(proc, bootIDFile string) *Host {
	return &Host{proc: proc, bootIDFile: bootIDFile, mounts: "self", proven: &sync.Map{}}
}

// Through returns the host for a process that has moved its root into that of
// another one (pid, or "self"): then paths lead through the other's mounts.
func (h *Host) Through(pid string) *Host {
	moved := *h
	moved.mounts = pid
	return &moved
}

// BootID is the id of this boot, "" where it cannot be read: then no holder is
// ever dead by it.
func (h *Host) BootID() string {
	id, _ := h.readBootID()
	return id
}

func (h *Host) readBootID() (string, error) {
	b, err := os.ReadFile(h.bootIDFile)
	id := strings.TrimSpace(string(b))
	if err == nil && id == "" {
		err = fmt.Errorf("%s is empty", h.bootIDFile)
	}
	if err != nil {
		return "", fmt.Errorf("the boot id cannot be read: %w", err)
	}
	return id, nil
}

// ErrNotNetns is returned for a path where no network namespace lives.
var ErrNotNetns = errors.New("no living network namespace")

// Netns returns the network namespace that is mounted at the path, or that a
// /proc/PID/ns/net path leads to. Errors other than ErrNotNetns say that it
// cannot be told whether one lives there.
func (h *Host) Netns(path string) (lease.Netns, error) {
	n := lease.Netns{Path: path}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if isNothing(err) || errors.Is(err, syscall.ENXIO) {
		return n, fmt.Errorf("%w at %q: %w", ErrNotNetns, path, err)
	}
	if err != nil {
		return n, err
	}
	defer f.Close()
	// On a file that is no namespace the request is unknown or fails.
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		return n, fmt.Errorf("%w at %q: it is another kind of file", ErrNotNetns, path)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return n, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	n.Dev, n.Ino = uint64(st.Dev), st.Ino
	return n, nil
}

// QuickState is the quick look: a holder of another boot is dead, one whose path
// still leads to its namespace is alive. A path that does not is no proof of
// death, for the namespace may live on in a process.
func (h *Host) QuickState(holder lease.Holder, boot string) lease.Liveness {
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

// PathGone reports whether the path of the holder's namespace certainly leads to it
// no longer: nothing is there, or something else. An error says why that cannot
// be told.
func (h *Host) PathGone(holder lease.Holder) (bool, error) {
	if holder.Netns.Ino == 0 {
		return false, errors.New("its network namespace was never seen")
	}
	var st unix.Stat_t
	err := unix.Stat(holder.Netns.Path, &st)
	switch {
	case err == nil:
		return st.Ino != holder.Netns.Ino || uint64(st.Dev) != holder.Netns.Dev, nil
	case isNothing(err):
		return true, nil
	}
	return false, &os.PathError{Op: "stat", Path: holder.Netns.Path, Err: err}
}

// isNothing reports whether an error says that nothing is at a path. Any other one
// says nothing about what is there.
func isNothing(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ESRCH)
}

// NetnsSet are the network namespaces that the host's processes are in.
type NetnsSet struct {
	inodes map[uint64]bool
	unseen error // why not every process could be asked; nil if all were
}

// NewNetnsSet is a list made by hand, for simulated hosts.
func NewNetnsSet(unseen error, inodes ...uint64) NetnsSet {
	p := NetnsSet{inodes: map[uint64]bool{}, unseen: unseen}
	for _, ino := range inodes {
		p.inodes[ino] = true
	}
	return p
}

// Incomplete says which process could not be asked, and why; nil if all were. Then
// that none is in a namespace proves something.
func (p NetnsSet) Incomplete() error {
	if p.inodes == nil {
		return errors.New("nobody has looked")
	}
	return p.unseen
}

// ProcessNetns asks every process. It costs some microseconds for each, so it is
// for taking over and collecting only. Process 1 is always there, so a list
// without it shows some of the processes alone. It is in the host's own namespace,
// so it does not matter where that may not be read, as of a confined one.
func (h *Host) ProcessNetns() NetnsSet {
	p := NetnsSet{inodes: map[uint64]bool{}}
	dir, err := os.Open(h.proc)
	if err != nil {
		p.miss(err)
		return p
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	p.miss(err)
	first := false
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		link, err := os.Readlink(h.processNetns(name))
		switch {
		case isNothing(err):
			// One that has ended meanwhile is in no namespace.
		case name == "1":
			first = true
			if err == nil {
				p.add(link)
			}
		case err != nil:
			p.miss(err)
		default:
			p.add(link)
		}
	}
	if !first {
		p.miss(fmt.Errorf("%s does not show process 1", h.proc))
	}
	return p
}

// add takes a namespace by what a link to it says.
func (p *NetnsSet) add(link string) {
	if ino, ok := spaceInode(link, "net"); ok {
		p.inodes[ino] = true
	} else {
		p.miss(fmt.Errorf("%q is no network namespace", link))
	}
}

// miss keeps the first reason.
func (p *NetnsSet) miss(err error) {
	if p.unseen == nil {
		p.unseen = err
	}
}

// MountedNetns are the namespaces that are mounted anywhere, as if a process were in
// each: what is in them lives on, whether or not a lease knows the path. It is for
// whoever collects at leisure. Where a pod waits it would stand in the way: the
// namespaces of new pods are mounted, and have the numbers of those that ended.
func (h *Host) MountedNetns() NetnsSet {
	p := NetnsSet{inodes: map[uint64]bool{}}
	b, err := h.mountinfo()
	p.miss(err)
	for line := range bytes.Lines(b) {
		if m, ok := netnsMount(string(line)); ok {
			p.inodes[m.ino] = true
		}
	}
	return p
}

// Union returns what either look has found. A process that moves on while it is
// looked for can hide from one of them.
func (p NetnsSet) Union(o NetnsSet) NetnsSet {
	both := NewNetnsSet(p.Incomplete())
	both.miss(o.Incomplete())
	maps.Copy(both.inodes, p.inodes)
	maps.Copy(both.inodes, o.inodes)
	return both
}

// Liveness reports whether a process lives in the namespace. Dead here means only
// that none does.
func (p NetnsSet) Liveness(n lease.Netns) lease.Liveness {
	switch {
	case n.Ino == 0:
		return lease.Unknown
	case p.inodes[n.Ino]:
		return lease.Alive
	case p.Incomplete() == nil:
		return lease.Dead
	}
	return lease.Unknown
}
