package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file implements the few rtnetlink(7) requests that are needed. A netlink library would make
// every start of the plugin 0.06 ms slower and the binary 250 KiB larger, although most calls send
// no such request.

// dumpTries is how often a list is requested that changes while it is read.
const dumpTries = 5

// dump returns the kernel's list for a request such as RTM_GETADDR in the namespace of this thread.
// It repeats the request if the list changed while it was read, because such a list may lack
// entries that existed all the time.
func dump(request int, family uint8) ([]syscall.NetlinkMessage, error) {
	return complete(func() ([]byte, error) { return syscall.NetlinkRIB(request, int(family)) })
}

// complete reads a list until it has not changed meanwhile, dumpTries times at most.
func complete(read func() ([]byte, error)) ([]syscall.NetlinkMessage, error) {
	for range dumpTries {
		b, err := read()
		if err != nil {
			return nil, os.NewSyscallError("netlink dump", err)
		}
		list, err := syscall.ParseNetlinkMessage(b)
		if !slices.ContainsFunc(list, isInterrupted) {
			return list, err
		}
	}
	return nil, errors.New("netlink dump: the list kept changing while it was read")
}

func isInterrupted(m syscall.NetlinkMessage) bool { return m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 }

// attribute is an attribute of a message.
type attribute struct {
	kind  uint16
	value []byte
}

// attributes parses the attributes that follow the fixed part of a message. It omits an incomplete
// attribute at the end.
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

// change sends a request for one change in the namespace of this thread, waits for the answer and
// returns its error.
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
	answer, n := make([]byte, 4096), 0
	err = unix.Sendto(fd, append(message, body...), 0, &unix.SockaddrNetlink{})
	if err == nil {
		n, _, err = unix.Recvfrom(fd, answer, 0)
	}
	if err != nil {
		return os.NewSyscallError("netlink request", err)
	}
	return parseAck(answer[:n])
}

// parseAck returns the result of a change from the kernel's answer.
func parseAck(answer []byte) error {
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
	return errors.New("netlink answer: no acknowledgement")
}
