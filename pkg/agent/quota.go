package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// A Quota is the processor quota of the agent's cgroup, which a CPU limit of its container sets. A
// process that has used its quota does not run until the next period, also while it holds the
// store's lock and every pod start of the node waits. Wait, as store.Store.Pause, lets the agent
// take the lock only while enough of the quota is left for that.
//
// When a period begins is not known. What the process has used within the length of a period before
// now is at least what it has used of the present one.
type Quota struct {
	limit func() (quota, period time.Duration) // quota is 0 if there is no limit
	used  func() time.Duration                 // processor time of this process
	now   func() time.Time

	mu      sync.Mutex
	samples []usage // the first one is the last one that is at least a period old
}

// usage is the processor time that the process has used up to a time.
type usage struct {
	at   time.Time
	used time.Duration
}

const (
	// lockQuota is how much of the quota has to be left: the kernel gives each processor 5 ms of it
	// at a time.
	lockQuota = 10 * time.Millisecond
	// longestPause is the longest time for which one transaction waits. A process whose other tasks
	// always use up the quota goes on nevertheless.
	longestPause = time.Second
)

// NewQuota returns the quota of this process. It opens the files of the cgroup, which cannot be
// found after the process has entered the host's root. root is where cgroups are mounted.
func NewQuota(root string) *Quota {
	return &Quota{limit: cgroupLimit(root, "/proc/self/cgroup"), used: processorTime, now: time.Now}
}

// Wait waits until enough of the quota is left, for at most longestPause, and reports whether it
// is. It returns at once if there is no limit of less than one processor.
func (q *Quota) Wait(ctx context.Context) bool {
	for end := q.now().Add(longestPause); !q.Over(); {
		_, period := q.limit()
		if !q.now().Before(end) || !notify.Wait(ctx, nil, period/8) {
			return false
		}
	}
	return true
}

// Over reports whether enough of the quota is left.
func (q *Quota) Over() bool {
	quota, period := q.limit()
	q.mu.Lock()
	defer q.mu.Unlock()
	if quota == 0 || quota >= period {
		q.samples = nil
		return true
	}
	now := usage{q.now(), q.used()}
	if n := len(q.samples); n == 0 || now.at.Sub(q.samples[n-1].at) >= period/16 {
		q.samples = append(q.samples, now)
	}
	for len(q.samples) > 1 && now.at.Sub(q.samples[1].at) >= period {
		q.samples = q.samples[1:]
	}
	first := q.samples[0]
	return now.at.Sub(first.at) >= period && quota-(now.used-first.used) >= min(lockQuota, quota/2)
}

func processorTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// cgroupLimit returns a function that reads the quota of the cgroup that a file like
// /proc/self/cgroup names: of version 2, or of the cpu controller of version 1. In a container the
// mounted hierarchy may begin with its own cgroup. Without files there is no limit.
func cgroupLimit(root, self string) func() (quota, period time.Duration) {
	content, err := os.ReadFile(self)
	if err != nil {
		return func() (quota, period time.Duration) { return 0, 0 }
	}
	var files []*os.File
	open := func(dir string, names ...string) bool {
		files = nil
		for _, name := range names {
			f, err := os.Open(filepath.Join(dir, name))
			if err != nil {
				return false
			}
			files = append(files, f)
		}
		return true
	}
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		dir, names := root, []string{"cpu.max"}
		if fields[1] != "" {
			dir, names = filepath.Join(root, "cpu"), []string{"cpu.cfs_quota_us", "cpu.cfs_period_us"}
			if !strings.Contains(","+fields[1]+",", ",cpu,") {
				continue
			}
		}
		if open(filepath.Join(dir, fields[2]), names...) || open(dir, names...) {
			break
		}
	}
	return func() (quota, period time.Duration) {
		var text string
		for _, f := range files {
			b := make([]byte, 64)
			n, err := f.ReadAt(b, 0)
			if err != nil && !errors.Is(err, io.EOF) {
				return 0, 0
			}
			text += string(b[:n]) + " "
		}
		return parseLimit(text)
	}
}

// parseLimit parses a quota and a period in microseconds. The quota may be "max" or negative, which
// is no limit.
func parseLimit(text string) (quota, period time.Duration) {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return 0, 0
	}
	q, err1 := strconv.ParseInt(fields[0], 10, 64)
	p, err2 := strconv.ParseInt(fields[1], 10, 64)
	if err1 != nil || err2 != nil || q <= 0 || p <= 0 {
		return 0, 0
	}
	return time.Duration(q) * time.Microsecond, time.Duration(p) * time.Microsecond
}
