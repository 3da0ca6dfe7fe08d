package host

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// What cannot be seen may run.
func TestRunning(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for name, tt := range map[string]struct {
		programs map[string]string // by process, "" for a kernel thread
		pid      int
		err      bool
	}{
		"an empty /proc":                 {programs: nil, err: true},
		"the processes of another place": {programs: map[string]string{"1": "/bin/init"}, err: true},
		"no agent":                       {programs: map[string]string{self: "/leasectl", "2": ""}},
		"an agent":                       {programs: map[string]string{self: "/i", "7": "/leasehold-agent"}, pid: 7},
		"an agent whose program was replaced": {programs: map[string]string{self: "/leasectl",
			"7": "/leasehold-agent (deleted)"}, pid: 7},
		"a process that cannot be read": {programs: map[string]string{self: "/leasectl", "7": "unreadable"},
			err: true},
	} {
		proc := t.TempDir()
		for pid, program := range tt.programs {
			dir := filepath.Join(proc, pid)
			err := os.Mkdir(dir, 0o755)
			switch program {
			case "":
			case "unreadable":
				err = errors.Join(err, os.Mkdir(filepath.Join(dir, "exe"), 0o755))
			default:
				err = errors.Join(err, os.Symlink(program, filepath.Join(dir, "exe")))
			}
			must.Succeed(t, err)
		}
		pid, err := New(proc, "").Running(func(name, _ string) bool { return name == "leasehold-agent" })
		check.Equal(t, pid, tt.pid, name, "process")
		check.Equal(t, err != nil, tt.err, name, err)
	}
}
