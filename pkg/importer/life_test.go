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
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestLife reads the cases of testdata/life.txt: what is given of the container that a file names,
// and what comes of it.
func TestLife(t *testing.T) {
	for _, c := range cases.Read(t, "testdata/life.txt") {
		if c.Name == "" {
			continue
		}
		file, unread, seen := parse("file 10.0.0.5 1h container=c1"), false, lease.Dead
		var entries []candidate
		for _, line := range c.Given {
			switch line {
			case "old file":
				file.IfName = ""
			case "unread entry":
				unread = true
			case "seen":
				seen = lease.Alive
			case "unread interfaces":
				seen = lease.Unknown
			default:
				entries = append(entries, parse(line))
			}
		}
		check.Equal(t, lifeOf(file, entries, unread, seen).String(), c.Want[0], c.Name)
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
			n.write("results/cbr0-c1-eth0", string(entry(`{"netns": null}`)))
		}, lease.Unknown, "10.0.0.5 Bound db-0/u1 c1 eth0 window 10m0s", "10.0.0.5 Bound nobody c1 eth0"},
	} {
		n := newNode(t)
		n.write("results/cbr0-c1-eth0", string(entry("{}")))
		c.prepare(n)
		file := hostlocal.File{Content: "c1\r\neth0", Modified: wall.Add(-2 * time.Hour)}
		of := n.node().Named(n.pool, netip.MustParseAddr(c.addr), file)
		check.Equal(t, of.Life, c.life, c.name)
		check.Equal(t, of.IsShown(), c.name == "alive", c.name, "is shown by the cache")
		for key, want := range map[bool]string{true: c.keyed, false: c.not} {
			check.Equal(t, story(Finding{Lease: of.Lease(n.pool, now, key, testCoolDown)}), want, c.name, "key", key)
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
	n.write("results/cbr0-c1-eth0", string(entry("{}")))
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
	check.Equal(t, fmt.Sprint(Unknown(n.pool, addr, now).Address), "10.0.0.5")
}
