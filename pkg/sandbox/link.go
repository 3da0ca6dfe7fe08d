package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// RunInNetns calls f on a thread that is in the namespace, if what is at its path is
// still the namespace that was seen there. Nothing else ever runs on the thread:
// it is brought home and thrown away.
func (h *Host) RunInNetns(n lease.Netns, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		home, err := os.Open(h.processNetns("thread-self"))
		if err != nil {
			done <- fmt.Errorf("there is no way back from another namespace: %w", err)
			return
		}
		defer home.Close()
		err = moveTo(n)
		if err == nil {
			err = f()
		}
		// The first thread of a process cannot be thrown away, only parked.
		_ = unix.Setns(int(home.Fd()), unix.CLONE_NEWNET)
		done <- err
	}()
	return <-done
}

func moveTo(n lease.Netns) error {
	fd, err := unix.Open(n.Path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return ErrNetnsGone
	}
	if err != nil {
		return fmt.Errorf("network namespace %s cannot be opened: %w", n.Path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("network namespace %s cannot be looked at: %w", n.Path, err)
	}
	if n.Ino == 0 || st.Ino != n.Ino || uint64(st.Dev) != n.Dev {
		return ErrNetnsGone
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("network namespace %s cannot be entered: %w", n.Path, err)
	}
	return nil
}

// Link is an interface in a namespace.
type Link struct {
	Index int
	Kind  string // "veth", "macvlan", ...; "" for hardware
	MAC   net.HardwareAddr
}

// ErrNoLink is returned for a name that no interface has.
var ErrNoLink = errors.New("no such interface")

// Link finds an interface in the network namespace at the path.
func (h *Host) Link(netns, name string) (l Link, err error) {
	err = h.at(netns, func() error {
		l, err = linkHere(name)
		return err
	})
	return l, err
}

// SetMAC gives an interface in the network namespace at the path a hardware
// address, and has the kernel tell the neighbours: with arp_notify and
// ndisc_notify it sends a gratuitous ARP and an unsolicited neighbour
// advertisement whenever the address of a running interface changes.
func (h *Host) SetMAC(netns, name string, mac net.HardwareAddr) error {
	return h.at(netns, func() error {
		l, err := linkHere(name)
		if err != nil {
			return err
		}
		for _, file := range []string{"ipv4/conf/%s/arp_notify", "ipv6/conf/%s/ndisc_notify"} {
			// Where there is no IPv6 there is no such file.
			_ = os.WriteFile(filepath.Join("/proc/sys/net", fmt.Sprintf(file, name)), []byte("1"), 0)
		}
		b := make([]byte, unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint32(b[4:], uint32(l.Index))
		if err := change(unix.RTM_SETLINK, appendAttribute(b, unix.IFLA_ADDRESS, mac)); err != nil {
			return fmt.Errorf("interface %s cannot have the hardware address %s: %w", name, mac, err)
		}
		return nil
	})
}

func (h *Host) at(netns string, f func() error) error {
	n, err := h.Netns(netns)
	if err != nil {
		return err
	}
	return h.RunInNetns(n, f)
}

func linkHere(name string) (Link, error) {
	list, err := dump(unix.RTM_GETLINK, unix.AF_UNSPEC)
	if err != nil {
		return Link{}, fmt.Errorf("the interfaces cannot be listed: %w", err)
	}
	for _, m := range list {
		if l, called, ok := parseLink(m.Data); ok && m.Header.Type == unix.RTM_NEWLINK && called == name {
			return l, nil
		}
	}
	return Link{}, fmt.Errorf("%s: %w", name, ErrNoLink)
}

func parseLink(b []byte) (l Link, name string, ok bool) {
	if len(b) < unix.SizeofIfInfomsg {
		return l, "", false
	}
	list := attributes(b[unix.SizeofIfInfomsg:])
	l.Index = int(int32(binary.NativeEndian.Uint32(b[4:])))
	l.MAC = find(list, unix.IFLA_ADDRESS)
	l.Kind = text(find(attributes(find(list, unix.IFLA_LINKINFO)), unix.IFLA_INFO_KIND))
	name = text(find(list, unix.IFLA_IFNAME))
	return l, name, name != ""
}

// text is a string of the kernel's, which ends with a NUL.
func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }
