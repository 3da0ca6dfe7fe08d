// Package env reads the environment of the programs: the clock, and the variables with which tests
// and unusual hosts change paths. No other package reads either.
package env

import (
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Environment variables, for tests and unusual hosts.
const (
	StateDir    = "LEASEHOLD_STATE_DIR"
	RunDir      = "LEASEHOLD_RUN_DIR"
	BootIDFile  = "LEASEHOLD_BOOT_ID_FILE"
	ClockOffset = "LEASEHOLD_CLOCK_OFFSET" // Go duration, added to both clocks
)

// Node is how a program accesses its node.
type Node struct {
	Dirs  store.Dirs
	Host  *host.Host
	Clock func() lease.Instant // the wall clock, the boot clock and the boot id
}

// Read returns the node according to the environment variables. The error names an invalid one.
func Read(getenv func(string) string) (Node, error) {
	or := func(name, defaultValue string) string {
		if v := getenv(name); v != "" {
			return v
		}
		return defaultValue
	}
	var offset time.Duration
	if v := getenv(ClockOffset); v != "" {
		var err error
		if offset, err = time.ParseDuration(v); err != nil {
			return Node{}, fmt.Errorf("%s %q is invalid; want a duration such as \"90s\" or \"-2h\"", ClockOffset, v)
		}
	}
	host := host.New("/proc", or(BootIDFile, host.DefaultBootIDFile))
	return Node{
		Dirs:  store.Dirs{State: or(StateDir, store.DefaultDirs.State), Run: or(RunDir, store.DefaultDirs.Run)},
		Host:  host,
		Clock: func() lease.Instant { return clock(host.BootID(), offset) },
	}, nil
}

func clock(bootID string, offset time.Duration) lease.Instant {
	var boot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot); err != nil {
		panic("env: CLOCK_BOOTTIME: " + err.Error()) // Linux has had it since 2.6.39
	}
	return lease.Instant{
		Wall: time.Now().Add(offset).UTC().Round(0),
		Boot: time.Duration(boot.Nano()) + offset, BootID: bootID,
	}
}

// Version returns the version that was set at link time, or else that of the build information.
func Version(linked string) string {
	if linked != "" {
		return linked
	}
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "unknown"
}
