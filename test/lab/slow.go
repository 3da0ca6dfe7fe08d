package lab

import (
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/must"
)

// A SlowDisk makes each sync of the commands that it starts take longer, and counts the syncs. It
// delays each caller by itself: concurrent syncs do not wait for each other, as they may on a disk.
//
// It uses seccomp user notifications, as Harm does. Other system calls are not affected.
type SlowDisk struct {
	delay time.Duration
	syncs atomic.Int64
	do    chan func()
	mu    sync.Mutex // of Do
}

var syncCalls = []int{unix.SYS_FDATASYNC, unix.SYS_FSYNC, unix.SYS_SYNC, unix.SYS_SYNCFS, unix.SYS_SYNC_FILE_RANGE}

// waitKillable keeps a signal from interrupting a call that waits for the answer. Otherwise the
// kernel would repeat the call, which would be counted and delayed twice. Linux has it since 5.19.
const waitKillable = 1 << 5

// NewSlowDisk returns a SlowDisk that is closed when the test ends.
func NewSlowDisk(t testing.TB, delay time.Duration) *SlowDisk {
	t.Helper()
	d := &SlowDisk{delay: delay, do: make(chan func())}
	listener := make(chan int)
	var failed error
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its filter
		fd, err := listenTo(syncCalls, waitKillable)
		failed = err
		listener <- fd
		for f := range d.do {
			f()
		}
	}()
	fd := <-listener
	must.Succeed(t, failed, "delaying syncs (needs Linux 5.19)")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		d.answer(fd)
		unix.Close(fd)
	}()
	t.Cleanup(func() { close(d.do); <-answered })
	return d
}

// Do runs f on the thread whose syncs, and those of the processes that f starts, are delayed.
func (d *SlowDisk) Do(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	done := make(chan struct{})
	d.do <- func() { defer close(done); f() }
	<-done
}

// run runs a command, and returns its duration.
func (d *SlowDisk) run(cmd *exec.Cmd) (took time.Duration, err error) {
	var began time.Time
	d.Do(func() { began, err = time.Now(), cmd.Start() })
	if err == nil {
		err = cmd.Wait()
	}
	return time.Since(began), err
}

// Syncs returns the number of syncs so far.
func (d *SlowDisk) Syncs() int { return int(d.syncs.Load()) }

// answer lets each call proceed after the delay, until no process is left that has the filter.
func (d *SlowDisk) answer(listener int) {
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err == unix.EINTR {
			continue
		} else if err != nil || poll[0].Revents&unix.POLLIN == 0 {
			return
		}
		var q question
		if err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)); err != nil {
			continue // the caller was killed
		}
		if !slices.Contains(syncCalls, int(q.nr)) {
			panic(fmt.Sprintf("lab: question about system call %d", q.nr))
		}
		d.syncs.Add(1)
		time.AfterFunc(d.delay, func() {
			reply := answer{id: q.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
			_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply)) // it fails for a killed caller
		})
	}
}
