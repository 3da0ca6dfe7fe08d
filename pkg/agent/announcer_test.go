package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

var (
	returnedAt = lease.Instant{Wall: time.Unix(1_700_000_000, 0), Boot: time.Hour, BootID: "boot-1"}
	cbr0       = lease.Pool{DataDir: "/var/lib/cni/networks", Network: "cbr0"}
)

// returned is the lease of an attachment that came back a moment ago.
func returned(container, addr string) lease.Lease {
	return lease.Lease{
		ID: "00112233445566aa", Pool: cbr0, Address: netip.MustParseAddr(addr), State: lease.Bound,
		Namespace: "db", Name: "db-0", BoundAt: returnedAt, Holder: lease.Holder{
			ContainerID: container, IfName: "eth0", BootID: returnedAt.BootID,
			Netns: lease.Netns{Path: "/run/netns/" + container, Dev: 4, Ino: 7},
		},
	}
}

// announcer is an Announcer over a simulated store and simulated namespaces.
type announcer struct {
	*Announcer
	t       *testing.T
	changes *Changes
	mu      sync.Mutex
	logged  background.Log

	bound   func(call int) ([]lease.Lease, error) // what the first, second, ... call of Bound returns
	calls   int                                   // of Bound
	entered int                                   // calls of Inside
	inside  error
}

func newAnnouncer(t *testing.T, queue ...string) *announcer {
	s := &announcer{t: t, bound: func(int) ([]lease.Lease, error) { return nil, nil }}
	dirs := dirsIn(t.TempDir())
	s.changes = NewChanges(dirs, slog.New(slog.DiscardHandler))
	s.Announcer = &Announcer{
		Dir: store.New(dirs).Run().Announcements(), Wake: daemon.Any(&s.changes.Queue),
		Bound: func(context.Context, lease.Attachment) ([]lease.Lease, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.calls++
			return s.bound(s.calls)
		},
		Inside: func(lease.Netns, func() error) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.entered++
			return s.inside
		},
		Clock:     func() lease.Instant { return returnedAt },
		Announced: func() {},
		Log:       slog.New(slog.NewTextHandler(&s.logged, nil)),
	}
	for _, n := range queue {
		s.enqueue(n)
	}
	return s
}

func (s *announcer) enqueue(name string) {
	s.t.Helper()
	must.Succeed(s.t, errors.Join(os.MkdirAll(s.Dir, 0o700), os.WriteFile(filepath.Join(s.Dir, name), nil, 0o600)))
}

// run runs the announcer until done returns true.
func (s *announcer) run(what string, done func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 2)
	go func() { ended <- s.Run(ctx) }()
	go func() { ended <- s.changes.Run(ctx) }()
	background.Eventually(s.t, func() string {
		if done() {
			return ""
		}
		return fmt.Sprintf("not yet: %s; log:\n%s", what, &s.logged)
	})
	cancel()
	for range 2 {
		check.Is(s.t, <-ended, context.Canceled)
	}
}

func (s *announcer) empty() bool {
	files, err := os.ReadDir(s.Dir)
	return err == nil && len(files) == 0
}

func TestInvalidEntriesAreRemoved(t *testing.T) {
	s := newAnnouncer(t, "nonsense", "@eth0", "c1@")
	must.Succeed(t, os.MkdirAll(filepath.Join(s.Dir, "folder", "inner"), 0o700))
	s.run("the queue is empty", s.empty)
	check.Equal(t, s.calls, 0, "calls of Bound")
	check.Equal(t, strings.Count(s.logged.String(), "invalid entry"), 4, s.logged.String())
}

// What cannot be announced does not block the queue. Each call of Inside, which looks for the
// interface, takes ten seconds.
func TestNothingToAnnounce(t *testing.T) {
	one := []lease.Lease{returned("c1", "10.0.0.2")}
	for name, tt := range map[string]struct {
		leases  []lease.Lease
		ago     time.Duration // since the pod's return
		inside  error
		entered int
		logged  string
	}{
		"there is no lease":            {},
		"the pod returned long ago":    {leases: one, ago: maxAge + time.Second, logged: errTooOld.Error()},
		"no interface has the address": {leases: one, inside: errNotReady, entered: 4, logged: errNotReady.Error()},
		"the namespace has ended":      {leases: one, inside: errors.New("has ended"), entered: 1, logged: "has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAnnouncer(t, "c1@eth0")
			s.bound = func(int) ([]lease.Lease, error) { return tt.leases, nil }
			s.inside = tt.inside
			s.Clock = func() lease.Instant {
				s.mu.Lock()
				defer s.mu.Unlock()
				later := returnedAt
				later.Boot += tt.ago + time.Duration(s.entered)*10*time.Second
				return later
			}
			s.run("the queue is empty", s.empty)
			check.Equal(t, s.entered, tt.entered, "calls of Inside; log:", s.logged.String())
			check.Contains(t, s.logged.String(), tt.logged)
		})
	}
}

func TestEntryAddedWhileRunning(t *testing.T) {
	s := newAnnouncer(t)
	added := false
	s.run("an entry was added and removed", func() bool {
		if !added && s.empty() {
			s.enqueue("c1@eth0")
			added = true
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.calls == 1 && s.empty()
	})
}

// The store is read again between the moment that the address can be used and the announcement: an
// address that the container no longer holds is not announced.
func TestOnlyTheHoldersAddressIsAnnounced(t *testing.T) {
	elsewhere := returned("c1", "10.0.0.2")
	elsewhere.Holder.Netns.Ino++
	held := returned("c1", "10.0.0.2")
	held.State = lease.Held
	otherPool := returned("c1", "10.0.0.2")
	otherPool.Pool.Network = "other"
	for name, now := range map[string][]lease.Lease{
		"released":            nil,
		"held":                {held},
		"another address":     {returned("c1", "10.0.0.3")},
		"another container":   {returned("c2", "10.0.0.2")},
		"another namespace":   {elsewhere},
		"another pool's same": {otherPool},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAnnouncer(t, "c1@eth0")
			s.bound = func(call int) ([]lease.Lease, error) {
				if call == 1 {
					return []lease.Lease{returned("c1", "10.0.0.2")}, nil
				}
				return now, nil
			}
			s.Announced = func() { t.Error("announced") }
			s.run("the queue is empty", s.empty)
			check.Equal(t, s.entered, 1, "calls of Inside, to find the interface; log:", &s.logged)
			check.Contains(t, s.logged.String(), errNotHeld.Error())
		})
	}
}

// An entry stays while it is not known what the container holds.
func TestStoreIsBusy(t *testing.T) {
	s := newAnnouncer(t, "c1@eth0")
	s.bound = func(int) ([]lease.Lease, error) { return nil, errors.New("busy") }
	s.run("Bound was called", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.calls > 0
	})
	if s.empty() {
		t.Error("the entry was removed")
	}
}

// An entry whose leases cannot be read is removed when its announcement would no longer be of use.
// The failure is logged.
func TestStoreStaysUnreadable(t *testing.T) {
	s := newAnnouncer(t, "c1@eth0", "c2@eth0", "c3@eth0")
	s.bound = func(int) ([]lease.Lease, error) { return nil, errors.New("lost") }
	s.Clock = func() lease.Instant { // each call of Bound takes longer than an announcement is of use
		s.mu.Lock()
		defer s.mu.Unlock()
		later := returnedAt
		later.Boot += time.Duration(s.calls) * (maxAge + time.Second)
		return later
	}
	s.run("the queue is empty", s.empty)
	if n := strings.Count(s.logged.String(), "lost"); n != 3 || s.calls != 3 {
		t.Errorf("Bound called %d times, logged %d times:\n%s", s.calls, n, s.logged.String())
	}
}

// announce announces one address with a simulated clock.
func (s *announcer) announce() error {
	var err error
	synctest.Test(s.t, func(*testing.T) {
		err = s.Announcer.announce(context.Background(), returned("c1", "10.0.0.2"), s.Log)
	})
	return err
}

// An announcement before which the store cannot be read is left out, and no other. Announced
// is called after all of them.
func TestBusyBetweenRepeats(t *testing.T) {
	for _, tc := range []struct {
		busy      []int // calls of Bound that fail
		announced bool
	}{{nil, true}, {[]int{2, 4}, true}, {[]int{1, 2, 3, 4, 5}, false}} {
		t.Run(fmt.Sprint(tc.busy), func(t *testing.T) {
			s := newAnnouncer(t)
			busy := errors.New("busy")
			s.bound = func(call int) ([]lease.Lease, error) {
				if slices.Contains(tc.busy, call) {
					return nil, busy
				}
				return []lease.Lease{returned("c1", "10.0.0.2")}, nil
			}
			var after []int // announcements sent before each call of Announced
			s.Announced = func() {
				after = append(after, s.entered-1) // the first call of Inside finds the interface
			}
			err := s.announce()
			sent := s.entered - 1
			check.Equal(t, sent, len(pauses)-len(tc.busy), "sent", err)
			check.Equal(t, err == nil, tc.announced, err)
			check.Equal(t, slices.Equal(after, []int{sent}), tc.announced, "Announced called after", after, "of", sent)
			if !tc.announced && !errors.Is(err, busy) {
				t.Errorf("unexpected error: %v", err)
			}
		})
	}
}

// A queue longer than maxWorkers is processed completely.
func TestLongQueue(t *testing.T) {
	var names []string
	for i := range 2 * maxWorkers {
		names = append(names, lease.Attachment{ContainerID: fmt.Sprint("c", i), IfName: "eth0"}.Name())
	}
	s := newAnnouncer(t, names...)
	s.run("the queue is empty", s.empty)
	check.Equal(t, s.calls, 2*maxWorkers, "calls of Bound")
}

// TestReady brings up an interface step by step, until ready finds it.
func TestReady(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, as make test does")
	}
	runtime.LockOSThread() // and never unlocked: the namespace ends with the thread
	must.Succeed(t, unix.Unshare(unix.CLONE_NEWNET))
	mac, _ := net.ParseMAC("02:00:00:00:00:07")
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: mac}, PeerName: "peer"}
	must.Succeed(t, netlink.LinkAdd(veth))
	eth0, err := netlink.LinkByName("eth0")
	must.Succeed(t, err)
	peer, err := netlink.LinkByName("peer")
	must.Succeed(t, err)
	addr := netip.MustParseAddr("10.9.8.7")
	want := func(step string, want bool) {
		t.Helper()
		link, err := ready(addr)
		deadline := time.Now().Add(time.Minute)
		for want && err != nil && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond) // the kernel reports a carrier with a delay
			link, err = ready(addr)
		}
		if want != (err == nil) || !want && !errors.Is(err, errNotReady) {
			t.Fatalf("%s: %v, want ready: %v", step, err, want)
		}
		if want && (link.Name != "eth0" || link.HardwareAddr.String() != mac.String()) {
			t.Errorf("%s: found %+v", step, link)
		}
	}
	must := func(err error) {
		t.Helper()
		must.Succeed(t, err)
	}
	want("no address", false)
	parsed, _ := netlink.ParseAddr("10.9.8.7/24")
	must(netlink.AddrAdd(eth0, parsed))
	want("down", false)
	must(netlink.LinkSetUp(eth0))
	want("up, its peer down", false)
	must(netlink.LinkSetUp(peer))
	want("both up", true)
	must(gratuitousARP(&net.Interface{Index: eth0.Attrs().Index, Name: "eth0", HardwareAddr: mac}, addr))
	must(netlink.LinkSetARPOff(eth0))
	want("without ARP", false)
	must(netlink.LinkSetARPOn(eth0))

	addr = netip.MustParseAddr("fd00::7")
	parsed, _ = netlink.ParseAddr("fd00::7/64")
	parsed.Flags = unix.IFA_F_TENTATIVE
	must(os.WriteFile("/proc/sys/net/ipv6/conf/eth0/dad_transmits", []byte("100"), 0)) // it stays tentative
	must(netlink.AddrAdd(eth0, parsed))
	want("tentative", false)
	must(netlink.AddrDel(eth0, parsed))
	parsed.Flags = unix.IFA_F_NODAD
	must(netlink.AddrAdd(eth0, parsed))
	want("not tentative", true)
	must(unsolicitedNA(&net.Interface{Index: eth0.Attrs().Index, Name: "eth0", HardwareAddr: mac}, addr))
}
