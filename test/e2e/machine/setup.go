package machine

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// setUp sets up the new namespaces as a machine, with its own /proc, boot id, cgroups and disk, and
// an empty /run.
func setUp(c Config) error {
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("hostname: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	// Shared among the machine's mount namespaces, as on a real node, because pods may use mount
	// propagation.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("shared mounts: %w", err)
	}
	if err := mountCgroups(); err != nil {
		return fmt.Errorf("cgroups: %w", err)
	}
	for _, dir := range []string{"/opt", "/var/lib", "/var/log"} {
		own := filepath.Join(c.Disk, dir)
		if err := os.MkdirAll(own, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(own, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	if err := overlay("/etc", c.Disk); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	if err := unix.Mount(c.BootID, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("boot id: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("/run: %w", err)
	}
	return network()
}

// overlay mounts an overlay with the host's directory as lower and the machine's as upper
// directory.
func overlay(dir, disk string) error {
	upper, work := filepath.Join(disk, dir), filepath.Join(disk, ".work", dir)
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
	if err := unix.Mount("overlay", dir, "overlay", 0, opts); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		err := os.WriteFile(filepath.Join("/proc/sys/net", key), []byte("1"), 0)
		if err != nil && !os.IsNotExist(err) { // a kernel without IPv6
			return err
		}
	}
	return nil
}
