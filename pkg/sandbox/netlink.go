package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// The plugin asks the kernel three things by rtnetlink(7), and only for a pod
// that comes back. A library for it made every start of the plugin 0.06 ms
// longer and its program 250 KiB larger, also for the pods that need none of it.

// dumpTries is how often a list is asked for that changes while it is read.
const dumpTries = 5

// dump lists what the kernel has of a kind in the namespace of this thread. A list
// that changed while it was read may lack what was there all the time, so it is none.
func dump(request int, family uint8) ([]syscall.NetlinkMessage, error) {
	for range dumpTries {
		b, err := syscall.NetlinkRIB(request, int(family))
		if err != nil {
			return nil, os.NewSyscallError("netlink dump", err)
		}
		list, err := syscall.ParseNetlinkMessage(b)
		if err != nil || !slices.ContainsFunc(list, isInterrupted) {
			return list, err
		}
	}
	return nil, errors.New("netlink dump: the list changed while it was read, each time")
}

func isInterrupted(m syscall.NetlinkMessage) bool { return m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 }

// attribute is one of a message's.
type attribute struct {
	kind  uint16
	value []byte
}

// attributes reads what follows a message's fixed part; what is cut off at the
// end is left out.
func attributes(b []byte) []attribute {
	var out []attribute
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			break
		}
		kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		out = append(out, attribute{kind, b[unix.SizeofRtAttr:size]})
		b = b[min(aligned(size), len(b)):]
	}
	return out
}

func find(list []attribute, kind uint16) []byte {
	for _, a := range list {
		if a.kind == kind {
			return a.value
		}
	}
	return nil
}

func aligned(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%unix.NLMSG_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// change asks the kernel for one change, in the namespace of this thread, and
// waits for its answer.
func change(request uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return os.NewSyscallError("netlink socket", err)
	}
	defer unix.Close(fd)
	message := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	message = binary.NativeEndian.AppendUint16(message, request)
	message = binary.NativeEndian.AppendUint16(message, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	message = append(message, make([]byte, 8)...) // sequence and port: there is one request
	if err := unix.Sendto(fd, append(message, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("netlink request", err)
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return os.NewSyscallError("netlink answer", err)
	}
	return acknowledged(answer[:n])
}

// acknowledged reads the kernel's answer to one change.
func acknowledged(answer []byte) error {
	list, err := syscall.ParseNetlinkMessage(answer)
	if err != nil {
		return fmt.Errorf("netlink answer: %w", err)
	}
	for _, m := range list {
		if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
			continue
		}
		if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
			return syscall.Errno(-code)
		}
		return nil
	}
	return errors.New("netlink answer: the kernel says neither yes nor no")
}
