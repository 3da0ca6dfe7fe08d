package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// RunInNetns calls f on a thread in the network namespace. It returns ErrNetnsGone without calling
// f if the namespace is no longer at its path. The thread runs nothing else afterwards.
func (h *Host) RunInNetns(n lease.Netns, f func() error) error {
	return h.onThread(func() error {
		if err := setNetns(n); err != nil {
			return err
		}
		return f()
	})
}

// onThread calls f on a thread of its own, in which f may call setns(2). Afterwards the thread
// returns to the network namespace in which it was, and the Go runtime ends it.
func (h *Host) onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		own, err := unix.Open(h.processNetns("thread-self"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- fmt.Errorf("failed to open the namespace of this thread: %w", err)
			return
		}
		err = f()
		// The runtime never ends the main thread, even if this goroutine was locked to it, so the
		// thread must leave f's namespace. setns fails only without privileges, and then f could
		// not enter another namespace either.
		_ = unix.Setns(own, unix.CLONE_NEWNET)
		unix.Close(own) // before the caller goes on, which may count its descriptors
		done <- err
	}()
	return <-done
}

// setNetns moves the calling thread into a network namespace.
func setNetns(n lease.Netns) error {
	fd, err := unix.Open(n.Path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if isNothing(err) {
		return ErrNetnsGone
	}
	var st unix.Stat_t
	if err == nil {
		defer unix.Close(fd)
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		return fmt.Errorf("failed to read network namespace %s: %w", n.Path, err)
	}
	if n.Ino == 0 || st.Ino != n.Ino || uint64(st.Dev) != n.Dev {
		return ErrNetnsGone
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("failed to enter network namespace %s: %w", n.Path, err)
	}
	return nil
}

// Link is an interface in a namespace.
type Link struct {
	Kind string // "veth", "macvlan", "device" for hardware, ...
	MAC  net.HardwareAddr
}

// ErrNoLink is returned by Link and SetMAC if no interface has the name.
var ErrNoLink = errors.New("no such interface")

// Link returns an interface in the network namespace at the path.
func (h *Host) Link(netns, name string) (l Link, err error) {
	err = h.onLink(netns, name, func(found netlink.Link) error {
		l = Link{Kind: found.Type(), MAC: found.Attrs().HardwareAddr}
		return nil
	})
	return l, err
}

// SetMAC sets the hardware address of an interface in the network namespace at the path. The kernel
// then announces the interface's addresses, because SetMAC sets arp_notify and ndisc_notify: with
// them it sends a gratuitous ARP and an unsolicited neighbour advertisement when the hardware
// address of a running interface changes.
func (h *Host) SetMAC(netns, name string, mac net.HardwareAddr) error {
	return h.onLink(netns, name, func(l netlink.Link) error {
		for _, file := range []string{"ipv4/conf/%s/arp_notify", "ipv6/conf/%s/ndisc_notify"} {
			// Without IPv6 the second file does not exist.
			_ = os.WriteFile(filepath.Join("/proc/sys/net", fmt.Sprintf(file, name)), []byte("1"), 0)
		}
		if err := netlink.LinkSetHardwareAddr(l, mac); err != nil {
			return fmt.Errorf("failed to set the hardware address of interface %s to %s: %w", name, mac, err)
		}
		return nil
	})
}

// onLink calls f with an interface of the network namespace at the path, on a thread in that
// namespace.
func (h *Host) onLink(netns, name string, f func(netlink.Link) error) error {
	n, err := h.Netns(netns)
	if err != nil {
		return err
	}
	return h.RunInNetns(n, func() error {
		l, err := netlink.LinkByName(name)
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			return fmt.Errorf("%s: %w", name, ErrNoLink)
		}
		if err != nil {
			return fmt.Errorf("failed to read the interface %s: %w", name, err)
		}
		return f(l)
	})
}
