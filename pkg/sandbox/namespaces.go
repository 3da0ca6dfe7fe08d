package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Namespace is a network namespace that lives now, other than the host's own,
// and what is seen in it.
type Namespace struct {
	Netns     lease.Netns
	Addresses []Address
	// Err says why nothing could be seen, or not all of it.
	Err error
}

// Address is one that an interface has.
type Address struct {
	Addr   netip.Addr
	IfName string
	MAC    string
}

// Namespaces finds every living network namespace, by the processes in them and by the mounts that
// keep them: a sandbox may have only one of the two, and no directory has all of them
// (docs/facts.md, "The namespace is mounted before ADD and removed after DEL"). Where a namespace
// is mounted that is its path, else it is a process's /proc/PID/ns/net.
//
// Left out are the namespaces of this process and of the host's first one, and
// the addresses that every namespace has. An error says that the host could
// not be looked at; one namespace that could not is in the list, with its own.
func (h *Host) Namespaces() ([]Namespace, error) {
	found, err := h.mounted()
	if err != nil {
		return nil, err
	}
	running, unseen, err := h.running()
	if err != nil {
		return nil, err
	}
	for id, n := range running {
		if _, known := found[id]; !known {
			found[id] = n
		}
	}
	host := []string{"thread-self", "1"}
	if h.isFirst() {
		host = append(host, kernelThreads)
	}
	for _, own := range host {
		if n, err := h.Netns(h.processNetns(own)); err == nil {
			delete(found, nsfs{n.Dev, n.Ino})
		}
	}
	sorted := slices.SortedFunc(maps.Values(found), func(a, b lease.Netns) int {
		return strings.Compare(a.Path, b.Path)
	})
	return append(h.visit(sorted), unseen...), nil
}

// nsfs identifies a namespace: the device and the inode of its file.
type nsfs struct{ dev, ino uint64 }

func (h *Host) processNetns(pid string) string { return filepath.Join(h.proc, pid, "ns", "net") }

// mounted finds the namespaces that a mount keeps. One that can no longer be
// reached (another mount covers it) has to show itself by a process.
func (h *Host) mounted() (map[nsfs]lease.Netns, error) {
	b, err := h.mountinfo()
	if err != nil {
		return nil, err
	}
	found := map[nsfs]lease.Netns{}
	for line := range bytes.Lines(b) {
		m, ok := netnsMount(string(line))
		if !ok {
			continue
		}
		if n, err := h.Netns(m.path); err == nil {
			id := nsfs{n.Dev, n.Ino}
			if old, known := found[id]; !known || n.Path < old.Path {
				found[id] = n
			}
		}
	}
	return found, nil
}

// mountinfo lists the mounts that paths lead through. There is one always.
func (h *Host) mountinfo() ([]byte, error) {
	file := filepath.Join(h.proc, h.mounts, "mountinfo")
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the mounts cannot be listed: %w", err)
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("the mounts cannot be listed: %s is empty", file)
	}
	return b, nil
}

// mount is one of a network namespace.
type mount struct {
	ino        uint64 // of the namespace
	path       string
	propagates bool // it is part of a peer group, or gets what is mounted in one
}

// netnsMount reads one line of mountinfo: "36 35 0:4 net:[4026532] /run/netns/x
// rw shared:1 - nsfs nsfs rw" (proc_pid_mountinfo(5)).
func netnsMount(line string) (m mount, ok bool) {
	here, system, ok := strings.Cut(line, " - ")
	fields := strings.Fields(here)
	if !ok || len(fields) < 6 || !strings.HasPrefix(system, "nsfs ") {
		return mount{}, false
	}
	if m.ino, ok = spaceInode(fields[3], "net"); !ok {
		return mount{}, false
	}
	m.path = unescape(fields[4])
	m.propagates = slices.ContainsFunc(fields[6:], func(field string) bool {
		return strings.HasPrefix(field, "shared:") || strings.HasPrefix(field, "master:")
	})
	return m, true
}

// unescape undoes the kernel's \040 and the like.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// running finds the namespaces that processes are in. Processes that may not be
// asked are returned as namespaces of which nothing is known.
func (h *Host) running() (found map[nsfs]lease.Netns, unseen []Namespace, err error) {
	dir, err := os.Open(h.proc)
	if err != nil {
		return nil, nil, fmt.Errorf("the processes cannot be listed: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, nil, fmt.Errorf("the processes cannot be listed: %w", err)
	}
	found = map[nsfs]lease.Netns{}
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		n := lease.Netns{Path: h.processNetns(name)}
		var st unix.Stat_t
		err := unix.Stat(n.Path, &st)
		if isNothing(err) {
			continue // it has ended meanwhile
		}
		if err != nil && name == "1" {
			continue // a confined one: it is in the host's own, see Processes
		}
		if err != nil {
			unseen = append(unseen, Namespace{Netns: n, Err: fmt.Errorf("%s cannot be looked at: %w", n.Path, err)})
			continue
		}
		n.Dev, n.Ino = uint64(st.Dev), st.Ino
		id := nsfs{n.Dev, n.Ino}
		if old, known := found[id]; !known || n.Path < old.Path {
			found[id] = n
		}
	}
	return found, unseen, nil
}

// visit looks into each namespace. The thread that enters them comes back; one
// that cannot is thrown away with its goroutine, so that no other code ever
// runs in a foreign namespace.
func (h *Host) visit(list []lease.Netns) []Namespace {
	done := make(chan []Namespace)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open(h.processNetns("thread-self"))
		if err != nil {
			runtime.UnlockOSThread()
			done <- unvisited(list, fmt.Errorf("there is no way back from another namespace: %w", err))
			return
		}
		defer home.Close()
		out := visitHere(list)
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- out
	}()
	return <-done
}

func visitHere(list []lease.Netns) []Namespace {
	out := make([]Namespace, 0, len(list))
	for _, n := range list {
		addresses, err := enter(n)
		if !errors.Is(err, ErrNetnsGone) {
			out = append(out, Namespace{Netns: n, Addresses: addresses, Err: err})
		}
	}
	return out
}

func unvisited(list []lease.Netns, err error) []Namespace {
	out := make([]Namespace, 0, len(list))
	for _, n := range list {
		out = append(out, Namespace{Netns: n, Err: err})
	}
	return out
}

// ErrNetnsGone is returned for a namespace that has ended since it was found: it is
// no longer at its path.
var ErrNetnsGone = errors.New("the namespace has ended")

// enter moves the thread into the namespace and lists its addresses.
func enter(n lease.Netns) ([]Address, error) {
	if err := moveTo(n); err != nil {
		return nil, err
	}
	addresses, err := addressesHere()
	if err != nil {
		return addresses, fmt.Errorf("the addresses in network namespace %s cannot be listed: %w", n.Path, err)
	}
	return addresses, nil
}

// addressesHere are those of the thread's namespace. Package net asks the
// kernel anew on each call, by netlink, in the thread that it is called in.
func addressesHere() ([]Address, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []Address
	var problems []error
	for _, i := range interfaces {
		list, err := i.Addrs()
		problems = append(problems, err)
		for _, a := range list {
			if addr, ok := assigned(a); ok {
				out = append(out, Address{Addr: addr, IfName: i.Name, MAC: i.HardwareAddr.String()})
			}
		}
	}
	return out, errors.Join(problems...)
}

// assigned leaves out what the kernel gives to every namespace by itself.
func assigned(a net.Addr) (netip.Addr, bool) {
	p, err := netip.ParsePrefix(a.String())
	addr := p.Addr().Unmap()
	own := addr.IsLoopback() || addr.IsUnspecified() || (addr.Is6() && addr.IsLinkLocalUnicast())
	return addr, err == nil && !own
}
