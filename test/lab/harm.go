package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Harm injects a fault into a Call at one of its file-system calls: that one fails with EIO, or
// the process is killed before it. Counting starts with the first read of stdin, because the calls
// of the Go runtime before main are not the plugin's. A kill makes a difference only after a call
// that changes something, so At counts only the calls that follow one, unless Every is set.
//
// It uses seccomp user notifications, with which the kernel notifies us of every file-system call
// of any thread. strace can inject faults too, but counts the calls of each thread separately, and
// Go programs change threads at any time.
type Harm struct {
	At    int // counted from 1
	Kill  bool
	Every bool
}

// fileCalls are the file-system calls. mmap counts only if it maps a file.
var fileCalls = []int{
	unix.SYS_OPENAT, unix.SYS_CLOSE, unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_LSEEK,
	unix.SYS_MMAP,
	unix.SYS_FSTAT, sysFstatat, unix.SYS_STATX,
	unix.SYS_IOCTL, unix.SYS_FLOCK, unix.SYS_GETDENTS64, unix.SYS_READLINKAT,
	unix.SYS_FDATASYNC, unix.SYS_FSYNC, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FCHMOD, unix.SYS_FCHMODAT,
	unix.SYS_UTIMENSAT,
	unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
}

// changing are the calls that may change a file.
var changing = []int{
	unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FLOCK, unix.SYS_FDATASYNC, unix.SYS_FSYNC, unix.SYS_FTRUNCATE,
	unix.SYS_FALLOCATE,
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_UTIMENSAT, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT,
	unix.SYS_RENAMEAT2,
	unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
}

// byPath are the calls whose second argument is a path. The first argument of the others is a file
// descriptor.
var byPath = []int{unix.SYS_OPENAT, sysFstatat, unix.SYS_STATX, unix.SYS_READLINKAT, unix.SYS_FCHMODAT,
	unix.SYS_UTIMENSAT, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT}

// sysFstatat has different names on different architectures.
var sysFstatat = map[string]int{"amd64": 262, "arm64": 79}[runtime.GOARCH]

// harmVar is set for the process that installs the filter and executes the plugin.
const harmVar = "LEASEHOLD_LAB_HARM"

// becomeHarmed executes the program in os.Args with a filter for file-system calls. It sends the
// listener to the socket at file descriptor 3.
func becomeHarmed() error {
	os.Unsetenv(harmVar)
	runtime.LockOSThread()
	rights := unix.UnixRights(-1) // to be filled in
	message := unix.Msghdr{Control: &rights[0], Controllen: uint64(len(rights))}
	listener, err := listenTo(fileCalls, 0)
	if err != nil {
		return err
	}
	// From here on file-system calls of this thread block until they are answered, so the Go
	// scheduler must not run on it.
	*(*int32)(unsafe.Pointer(&rights[unix.CmsgLen(0)])) = int32(listener)
	if _, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, 3, uintptr(unsafe.Pointer(&message)), 0); errno != 0 {
		return errno
	}
	return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
}

// listenTo has the kernel ask before each of the system calls of this thread and of the processes
// that it starts, and returns the file descriptor of the questions.
func listenTo(calls []int, flags uintptr) (listener int, err error) {
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the call's number
	for i, nr := range calls {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr),
			Jt: uint8(len(calls) - i)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return 0, fmt.Errorf("seccomp: %w", errno)
	}
	return int(fd), nil
}

// run runs the command with the fault, and waits for it. It returns the call that was affected, ""
// if there were fewer calls.
func (h Harm) run(cmd *exec.Cmd) (harmed string, err error) {
	cmd.Args = append([]string{"lab-harm"}, cmd.Args...)
	cmd.Path = "/proc/self/exe"
	cmd.Env = append(cmd.Env, harmVar+"=1", "GODEBUG=asyncpreemptoff=1") // a signal would cause a second notification
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(pair[0])
	unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	cmd.ExtraFiles = []*os.File{theirs}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return "", err
	}
	listener, err := receiveFD(pair[0])
	if err == nil {
		harmed, err = h.answer(listener, cmd.Process)
		unix.Close(listener)
	}
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return "", fmt.Errorf("fault injection: %w", err)
	}
	return harmed, cmd.Wait()
}

func receiveFD(socket int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	n, err := 0, error(unix.EINTR)
	for err == unix.EINTR {
		_, n, _, _, err = unix.Recvmsg(socket, nil, oob, 0)
	}
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("no listener received (%v)", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, err
	}
	return fds[0], nil
}

// The kernel's struct seccomp_notif and seccomp_notif_resp.
type (
	question struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	answer struct {
		id    uint64
		val   int64
		err   int32
		flags uint32
	}
)

// answer lets all calls proceed except one. It is one loop, because what it answers depends on all
// calls before.
func (h Harm) answer(listener int, process *os.Process) (harmed string, err error) {
	n, begun, changed := 0, false, true
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, 60_000); err == unix.EINTR {
			continue
		} else if err != nil || n == 0 {
			return harmed, fmt.Errorf("no system call within a minute (%v)", err)
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return harmed, nil // all processes have ended
		}
		var q question
		if err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)); err == unix.ENOENT ||
			err == unix.EINTR {
			continue // the caller was killed
		} else if err != nil {
			return harmed, err
		}
		begun = begun || int(q.nr) == unix.SYS_READ && q.args[0] == 0
		own := begun && (int(q.nr) != unix.SYS_MMAP || int32(q.args[4]) >= 0)
		if own && (changed || h.Every || !h.Kill) {
			n++
		}
		if own {
			changed = slices.Contains(changing, int(q.nr)) || int(q.nr) == unix.SYS_OPENAT &&
				q.args[2]&unix.O_CREAT != 0
		}
		reply := answer{id: q.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if own && n == h.At && harmed == "" {
			harmed = describe(q)
			if h.Kill {
				process.Kill()
			}
			reply.flags, reply.err = 0, -int32(unix.EIO)
		}
		if err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply)); err != nil &&
			err != unix.ENOENT {
			return harmed, err
		}
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// describe returns the call and its file, while the caller waits.
func describe(q question) string {
	fd := q.args[0]
	if int(q.nr) == unix.SYS_MMAP {
		fd = q.args[4]
	}
	file, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", q.pid, fd))
	if slices.Contains(byPath, int(q.nr)) {
		file = readString(q.pid, q.args[1])
	}
	return fmt.Sprintf("system call %d on fd %d, %s", q.nr, int32(fd), file)
}

func readString(pid uint32, address uint64) string {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return ""
	}
	defer memory.Close()
	text := make([]byte, 256)
	n, _ := memory.ReadAt(text, int64(address))
	text, _, _ = bytes.Cut(text[:n], []byte{0})
	return strings.ToValidUTF8(string(text), "?")
}
