package host

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Namespace is a network namespace other than the host's, and its addresses.
type Namespace struct {
	Netns     lease.Netns
	Addresses []Address
	// Err is not nil if Addresses is incomplete.
	Err error
}

// Address is an address of an interface.
type Address struct {
	Addr   netip.Addr
	IfName string
	MAC    string
}

// Namespaces returns every network namespace in use. It finds them by their processes and by their
// mounts: a sandbox may have only one of the two, and no directory contains all of them
// (docs/facts.md, "The namespace is mounted before ADD and removed after DEL"). The path of a
// namespace is its mount, or else the /proc/PID/ns/net of a process.
//
// It omits the namespaces of this process and of process 1, and the addresses that every namespace
// has. It returns an error if the processes or mounts cannot be listed. A namespace that cannot be
// read is in the list, with its error.
func (h *Host) Namespaces() ([]Namespace, error) {
	mounts, err := h.netnsMounts()
	if err != nil {
		return nil, err
	}
	var unread []Namespace
	// add adds the namespace at a path by its inode: all are files of one file system. Of several
	// paths it keeps the one that sorts first, in whichever order they were found.
	add := func(found map[uint64]lease.Netns, path string) {
		n, err := h.Netns(path)
		old, known := found[n.Ino]
		switch {
		case err != nil && !errors.Is(err, ErrNotNetns): // else it has ended, or another mount covers it
			unread = append(unread, Namespace{Netns: n, Err: err})
		case err == nil && (!known || n.Path < old.Path):
			found[n.Ino] = n
		}
	}
	mounted, found := map[uint64]lease.Netns{}, map[uint64]lease.Netns{}
	for _, m := range mounts {
		add(mounted, m.path)
	}
	// The namespace of process 1 is the host's, and a security module may forbid to read it.
	err = h.eachProcess(func(pid string) {
		if pid != "1" {
			add(found, h.processNetns(pid))
		}
	})
	if err != nil {
		return nil, err
	}
	maps.Copy(found, mounted)
	host := []string{"thread-self", "1"}
	if h.isInitialPIDNamespace() {
		host = append(host, kernelThreads)
	}
	for _, own := range host {
		n, _ := h.Netns(h.processNetns(own)) // after an error the inode is that of no namespace
		delete(found, n.Ino)
	}
	list := slices.SortedFunc(maps.Values(found), func(a, b lease.Netns) int { return strings.Compare(a.Path, b.Path) })
	return append(h.readAll(list), unread...), nil
}

func (h *Host) processNetns(pid string) string { return filepath.Join(h.proc, pid, "ns", "net") }

// netnsMounts returns the mounts of network namespaces where paths are resolved.
func (h *Host) netnsMounts() (out []mount, err error) {
	file := filepath.Join(h.proc, h.mounts, "mountinfo")
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("failed to list the mounts: %w", err)
	}
	if len(b) == 0 { // there is always one
		return nil, fmt.Errorf("failed to list the mounts: %s is empty", file)
	}
	for line := range strings.Lines(string(b)) {
		if m, ok := netnsMount(line); ok {
			out = append(out, m)
		}
	}
	return out, nil
}

// mount is the mount of a network namespace.
type mount struct {
	ino        uint64 // of the namespace
	path       string
	propagates bool // the mount is shared, or receives mounts from a peer group (mount_namespaces(7))
}

// netnsMount parses a line of mountinfo: "36 35 0:4 net:[4026532] /run/netns/x rw shared:1 - nsfs
// nsfs rw" (proc_pid_mountinfo(5)).
func netnsMount(line string) (m mount, ok bool) {
	here, system, ok := strings.Cut(line, " - ")
	fields := strings.Fields(here)
	if !ok || len(fields) < 6 || !strings.HasPrefix(system, "nsfs ") {
		return mount{}, false
	}
	if m.ino, ok = linkInode(fields[3], "net"); !ok {
		return mount{}, false
	}
	m.path = unescape(fields[4])
	m.propagates = slices.ContainsFunc(fields[6:], func(field string) bool {
		return strings.HasPrefix(field, "shared:") || strings.HasPrefix(field, "master:")
	})
	return m, true
}

// unescape replaces the octal escapes of the kernel.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// readAll returns the addresses of each namespace, except those that have ended. One thread enters
// them all.
func (h *Host) readAll(list []lease.Netns) (out []Namespace) {
	err := h.onThread(func() error {
		for _, n := range list {
			if addresses, err := readAddresses(n); !errors.Is(err, ErrNetnsGone) {
				out = append(out, Namespace{Netns: n, Addresses: addresses, Err: err})
			}
		}
		return nil
	})
	if err != nil {
		for _, n := range list {
			out = append(out, Namespace{Netns: n, Err: err})
		}
	}
	return out
}

// ErrNetnsGone is returned if a namespace is no longer at its path.
var ErrNetnsGone = errors.New("the network namespace has ended")

// readAddresses moves the thread into the namespace and returns its addresses.
func readAddresses(n lease.Netns) ([]Address, error) {
	if err := setNetns(n); err != nil {
		return nil, err
	}
	// Package net sends a netlink request from the calling thread at each call.
	interfaces, err := net.Interfaces()
	var out []Address
	problems := []error{err}
	for _, i := range interfaces {
		list, err := i.Addrs()
		problems = append(problems, err)
		for _, a := range list {
			if addr, ok := assigned(a); ok {
				out = append(out, Address{Addr: addr, IfName: i.Name, MAC: i.HardwareAddr.String()})
			}
		}
	}
	if err := errors.Join(problems...); err != nil {
		return out, fmt.Errorf("failed to list the addresses in network namespace %s: %w", n.Path, err)
	}
	return out, nil
}

// assigned returns the address of a, and reports whether it was assigned by somebody. Loopback and
// IPv6 link-local addresses were not: they exist in every namespace.
func assigned(a net.Addr) (netip.Addr, bool) {
	p, err := netip.ParsePrefix(a.String())
	addr := p.Addr().Unmap()
	own := addr.IsLoopback() || addr.IsUnspecified() || (addr.Is6() && addr.IsLinkLocalUnicast())
	return addr, err == nil && !own
}
