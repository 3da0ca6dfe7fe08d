package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// subnet is large enough for 65,000 leases and a burst.
const subnet = "10.64.0.0/16"

// fullSubnet has 8,189 addresses for pods.
const fullSubnet = "10.64.0.0/19"

// addresses returns the first n addresses of either subnet after its gateway.
func addresses(n int) []netip.Addr {
	next := netip.MustParsePrefix(subnet).Addr().Next()
	var all []netip.Addr
	for range n {
		next = next.Next()
		all = append(all, next)
	}
	return all
}

// fillHostLocal writes files as host-local does.
func (c *contender) fillHostLocal(leases int) {
	dir := filepath.Join(c.dataDir(), "bench")
	c.b.check(os.MkdirAll(dir, 0o755))
	for i, addr := range addresses(leases) {
		c.b.check(os.WriteFile(filepath.Join(dir, addr.String()), []byte(fmt.Sprintf("filled-%d\r\neth0", i)), 0o600))
		c.b.check(os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(addr.String()), 0o600))
	}
}

// fillLeasehold writes the leases in one transaction. With calls of the plugin 65,000 would take
// minutes.
func (c *contender) fillLeasehold(leases int) {
	if leases == 0 {
		return
	}
	prefix := netip.MustParsePrefix(c.subnet)
	r, err := pool.NewRange(prefix, netip.Addr{}, netip.Addr{}, netip.Addr{})
	c.b.check(err)
	set, err := pool.NewSet(r)
	c.b.check(err)
	namespaces := filepath.Join(c.dir, "netns")
	c.b.check(os.MkdirAll(namespaces, 0o755))
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	c.b.check(err)

	now := lease.Instant{Wall: time.Now(), BootID: string(boot[:36])}
	p := lease.Pool{DataDir: c.dataDir(), Network: "bench"}
	s := store.New(store.Dirs{State: filepath.Join(c.dir, "state"),
		Run: filepath.Join("/run/lab", filepath.Base(c.dir))})
	c.b.check(s.Update(context.Background(), store.Options{}, func(tx *store.Tx) error {
		if err := tx.SetAdopted(p); err != nil {
			return err
		}
		if err := errors.Join(tx.BeginBoot(now.BootID), tx.SetPoolBoot(p, now.BootID)); err != nil {
			return err
		}
		for i, addr := range addresses(leases) {
			// An ADD takes a file with the inode that is in the lease for the holder's namespace.
			path := filepath.Join(namespaces, fmt.Sprint(i))
			var netns syscall.Stat_t
			if err := errors.Join(os.WriteFile(path, nil, 0o600), syscall.Stat(path, &netns)); err != nil {
				return err
			}
			l, err := lease.Apply(lease.Lease{}, lease.Bind{
				ID: fmt.Sprintf("%016x", i), Pool: p, Address: addr, Set: set.ID(),
				Namespace: "default", Name: fmt.Sprint("filled-", i), UID: fmt.Sprint("uid-", i),
				Holder: lease.Holder{
					ContainerID: fmt.Sprintf("filled-%059d", i), IfName: "eth0", BootID: now.BootID,
					Netns: lease.Netns{Path: path, Dev: netns.Dev, Ino: netns.Ino},
				},
				Window: lease.Window(10 * time.Minute), Soft: 2 * time.Minute,
			}, now)
			if err != nil {
				return err
			}
			if err := tx.Put(p, addr, l); err != nil {
				return err
			}
			if err := tx.SetCursor(p, set.ID(), addr); err != nil {
				return err
			}
		}
		return nil
	}))
}
