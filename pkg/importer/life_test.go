package importer

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestLife has every case of lifeOf: what the entries of libcni's cache and the interfaces of the
// node show of the container c1@eth0, which the file of 10.0.0.5 has named for an hour.
func TestLife(t *testing.T) {
	const alive, dead, unknown = lease.Alive, lease.Dead, lease.Unknown
	file := parse("file 10.0.0.5 1h container=c1")
	for _, c := range []struct {
		name    string
		entries []string
		unread  bool
		seen    lease.Liveness
		want    lease.Liveness
	}{
		{"no entry: its ADD may be under way", nil, false, dead, unknown},
		{"no entry, and an interface has the address", nil, false, alive, alive},
		{"its namespace exists", []string{"live-cache 10.0.0.5 1m container=c1 netns=db-0"}, false, dead, alive},
		{"its namespace exists, with another address", []string{"live-cache 10.0.0.6 1m container=c1 netns=db-0"},
			false, dead, alive},
		{"its namespace is gone", []string{"dead-cache 10.0.0.5 1m container=c1"}, false, dead, dead},
		{"its namespace is gone, and the entry is as old as the file",
			[]string{"dead-cache 10.0.0.5 1h container=c1"}, false, dead, dead},
		{"its namespace is gone, and an interface has the address",
			[]string{"dead-cache 10.0.0.5 1m container=c1"}, false, alive, alive},
		{"its namespace is gone, and interfaces cannot be read",
			[]string{"dead-cache 10.0.0.5 1m container=c1"}, false, unknown, unknown},
		{"its namespace is gone, and an entry cannot be read",
			[]string{"dead-cache 10.0.0.5 1m container=c1"}, true, dead, unknown},
		{"the entry is older than the file: of a former life", []string{"dead-cache 10.0.0.5 2h container=c1"},
			false, dead, unknown},
		{"the entry has another address", []string{"dead-cache 10.0.0.6 1m container=c1"}, false, dead, unknown},
		{"the entry is of another container", []string{"dead-cache 10.0.0.5 1m container=c2"}, false, dead, unknown},
		{"the entry is of another interface", []string{"dead-cache 10.0.0.5 1m container=c1 if=net1"}, false, dead,
			unknown},
		{"another interface is alive", []string{"live-cache 10.0.0.5 1m container=c1 netns=db-0 if=net1"}, false,
			dead, unknown},
		{"its namespace cannot be read", []string{"live-cache 10.0.0.5 1m container=c1"}, false, dead, unknown},
		{"one is gone, and the other cannot be read", []string{"dead-cache 10.0.0.5 1m container=c1",
			"live-cache 10.0.0.5 1m container=c1"}, false, dead, unknown},
		{"one is gone, and the other exists", []string{"dead-cache 10.0.0.5 1m container=c1",
			"live-cache 10.0.0.5 2h container=c1 netns=db-0"}, false, dead, alive},
	} {
		var entries []candidate
		for _, e := range c.entries {
			entries = append(entries, parse(e))
		}
		if got := lifeOf(file, entries, c.unread, c.seen); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	alone := file
	alone.IfName = "" // a file of host-local before v0.8.0
	for kind, want := range map[string]lease.Liveness{"dead-cache 10.0.0.5 1m container=c1 if=net1": dead,
		"live-cache 10.0.0.5 1m container=c1 netns=db-0 if=net1": alive} {
		if got := lifeOf(alone, []candidate{parse(kind)}, false, dead); got != want {
			t.Errorf("the container alone, %s: %s, want %s", kind, got, want)
		}
	}
}

// A file's container gets the pod and the window of the entry that names the address, and the
// namespace of the entry, or else of the interface that has the address.
func TestNamedContainer(t *testing.T) {
	const seen = "10.0.0.5 Bound nobody c1 eth0 02:00:00:00:00:05 /run/netns/seen"
	for _, c := range []struct {
		name, addr string
		prepare    func(n *node)
		life       lease.Liveness
		keyed, not string // its lease with a key, and without one
	}{
		{"alive", "10.0.0.5", func(n *node) { n.lives("/run/netns/db-0", 11) }, lease.Alive,
			"10.0.0.5 Bound db-0/u1 c1 eth0 /run/netns/db-0 window 10m0s",
			"10.0.0.5 Bound nobody c1 eth0 /run/netns/db-0"},
		{"alive with another address", "10.0.0.6", func(n *node) { n.lives("/run/netns/db-0", 11) }, lease.Alive,
			"10.0.0.6 Bound nobody c1 eth0 /run/netns/db-0", "10.0.0.6 Bound nobody c1 eth0 /run/netns/db-0"},
		{"dead", "10.0.0.5", func(*node) {}, lease.Dead, "10.0.0.5 Bound db-0/u1 c1 eth0 window 10m0s",
			"10.0.0.5 Bound nobody c1 eth0"},
		{"on an interface", "10.0.0.5", func(n *node) { n.lives("/run/netns/seen", 12, "10.0.0.5") }, lease.Alive,
			"10.0.0.5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/seen window 10m0s", seen},
		{"no entry", "10.0.0.5", func(n *node) {
			must.Succeed(t, os.Remove(filepath.Join(n.dir, "results/cbr0-c1-eth0")))
			n.lives("/run/netns/seen", 12, "10.0.0.5") // which may be another container's
		}, lease.Alive, "10.0.0.5 Bound nobody c1 eth0", "10.0.0.5 Bound nobody c1 eth0"},
		{"an entry without a namespace", "10.0.0.5", func(n *node) {
			n.write("results/cbr0-c1-eth0", string(entry(func(f map[string]any) { delete(f, "netns") })))
		}, lease.Unknown, "10.0.0.5 Bound db-0/u1 c1 eth0 window 10m0s", "10.0.0.5 Bound nobody c1 eth0"},
	} {
		n := newNode(t)
		n.write("results/cbr0-c1-eth0", string(entry(nil)))
		c.prepare(n)
		file := hostlocal.File{Content: "c1\r\neth0", Modified: wall.Add(-2 * time.Hour)}
		of := n.node().Named(n.pool, netip.MustParseAddr(c.addr), file)
		if of.Life != c.life || of.IsShown() != (c.name == "alive") {
			t.Errorf("%s: %s, shown by the cache: %v", c.name, of.Life, of.IsShown())
		}
		for key, want := range map[bool]string{true: c.keyed, false: c.not} {
			if got := story(Finding{Lease: of.Lease(n.pool, now, key, testCoolDown)}); got != want {
				t.Errorf("%s, key %v: %s, want %s", c.name, key, got, want)
			}
		}
	}
}

// The namespaces are listed only if the cache does not show that the container is alive.
func TestNamedListsNamespaces(t *testing.T) {
	listed := 0
	n := newNode(t)
	s := n.node()
	s.Namespaces = func() ([]host.Namespace, error) { listed++; return nil, errors.New("no permission") }
	file := hostlocal.File{Content: "c1\r\neth0", Modified: wall.Add(-2 * time.Hour)}
	addr := netip.MustParseAddr("10.0.0.5")
	n.write("results/cbr0-c1-eth0", string(entry(nil)))
	if of := s.Named(n.pool, addr, file); of.Life != lease.Unknown || listed != 1 {
		t.Errorf("%s, listed %d times", of.Life, listed)
	}
	s.Namespaces = func() ([]host.Namespace, error) {
		listed++
		return []host.Namespace{{Err: errors.New("no permission")}}, nil
	}
	if of := s.Named(n.pool, addr, file); of.Life != lease.Unknown || listed != 2 {
		t.Errorf("one namespace cannot be read: %s, listed %d times", of.Life, listed)
	}
	n.lives("/run/netns/db-0", 11)
	s.Netns = n.host.Netns
	if of := s.Named(n.pool, addr, file); of.Life != lease.Alive || listed != 2 {
		t.Errorf("%s, listed %d times", of.Life, listed)
	}
	if got := fmt.Sprint(Unknown(n.pool, addr, now).Address); got != "10.0.0.5" {
		t.Error(got)
	}
}
