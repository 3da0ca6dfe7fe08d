// Package env is what every main reads from its surroundings and hands on: the
// clock, and the variables that point tests and odd hosts at other places. No
// other package reads either.
package env

import (
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The variables. They are set for nothing but tests and odd hosts.
const (
	StateDir    = "LEASEHOLD_STATE_DIR"
	RunDir      = "LEASEHOLD_RUN_DIR"
	BootIDFile  = "LEASEHOLD_BOOT_ID_FILE"
	ClockOffset = "LEASEHOLD_CLOCK_OFFSET" // a Go duration, added to both clocks
)

// Node is where a program finds its node.
type Node struct {
	Dirs  store.Dirs
	Host  *sandbox.Host
	Clock func() lease.Instant // both clocks, without the boot id
}

// Read builds the node from the variables, or names the one that is wrong.
func Read(getenv func(string) string) (Node, error) {
	or := func(name, otherwise string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return otherwise
	}
	var offset time.Duration
	if v := getenv(ClockOffset); v != "" {
		var err error
		if offset, err = time.ParseDuration(v); err != nil {
			return Node{}, fmt.Errorf("%s is %q: a duration such as \"90s\" or \"-2h\" is accepted", ClockOffset, v)
		}
	}
	return Node{
		Dirs:  store.Dirs{State: or(StateDir, store.DefaultDirs.State), Run: or(RunDir, store.DefaultDirs.Run)},
		Host:  sandbox.New("/proc", or(BootIDFile, sandbox.DefaultBootIDFile)),
		Clock: func() lease.Instant { return clock(offset) },
	}, nil
}

func clock(offset time.Duration) lease.Instant {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		panic("env: CLOCK_BOOTTIME: " + err.Error()) // Linux has had it since 2.6.39
	}
	return lease.Instant{
		Wall: time.Now().Add(offset).UTC().Round(0),
		Boot: time.Duration(boot.Nano()) + offset,
	}
}

// Version is the version set at link time, or what the build knows of itself.
func Version(linked string) string {
	if linked != "" {
		return linked
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "unknown"
}
