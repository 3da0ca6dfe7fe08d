package announce

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

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

var (
	now  = lease.Instant{Wall: time.Unix(1_700_000_000, 0), Boot: time.Hour, BootID: "boot-1"}
	pool = lease.Pool{DataDir: "/var/lib/cni/networks", Network: "cbr0"}
)

// bound is the lease of an attachment that came back a moment ago.
func bound(container, addr string) lease.Lease {
	return lease.Lease{
		ID: "00112233445566aa", Pool: pool, Address: netip.MustParseAddr(addr), State: lease.Bound, Namespace: "db", Name: "db-0",
		Holder: lease.Holder{ContainerID: container, IfName: "eth0", BootID: now.BootID, Netns: lease.Netns{Path: "/run/netns/" + container, Dev: 4, Ino: 7}}, BoundAt: now,
	}
}

// stage is an Announcer over a simulated store and simulated namespaces.
type stage struct {
	*Announcer
	t   *testing.T
	mu  sync.Mutex
	log strings.Builder

	bound   func(ask int) ([]lease.Lease, error) // the answer to the first, second, ... question
	asked   int
	entered int
	inside  error
}

func (s *stage) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(b)
}

func (s *stage) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

func newStage(t *testing.T, notes ...string) *stage {
	s := &stage{t: t, bound: func(int) ([]lease.Lease, error) { return nil, nil }}
	s.Announcer = &Announcer{
		Dir: filepath.Join(t.TempDir(), "announce"),
		Bound: func(context.Context, lease.Holder) ([]lease.Lease, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			return s.bound(s.asked)
		},
		Inside: func(lease.Netns, func() error) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.entered++
			return s.inside
		},
		Clock: func() lease.Instant { return now },
		Log:   slog.New(slog.NewTextHandler(s, nil)),
	}
	for _, n := range notes {
		s.leave(n)
	}
	return s
}

func (s *stage) leave(note string) {
	s.t.Helper()
	if err := errors.Join(os.MkdirAll(s.Dir, 0o700), os.WriteFile(filepath.Join(s.Dir, note), nil, 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

// run runs the announcer until so is true.
func (s *stage) run(what string, so func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for deadline := time.Now().Add(20 * time.Second); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			cancel()
			s.t.Fatalf("it does not become true: %s; it says:\n%s", what, s.said())
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		s.t.Errorf("it ended with %v", err)
	}
}

func (s *stage) empty() bool {
	files, err := os.ReadDir(s.Dir)
	return err == nil && len(files) == 0
}

func TestNotesThatAreNone(t *testing.T) {
	s := newStage(t, "nonsense", "@eth0", "c1@")
	if err := os.MkdirAll(filepath.Join(s.Dir, "folder", "inner"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.run("the queue is empty", s.empty)
	if s.asked != 0 || strings.Count(s.said(), "cannot be read") != 4 {
		t.Errorf("asked %d times, said:\n%s", s.asked, s.said())
	}
}

func TestNobodysNotes(t *testing.T) {
	s := newStage(t, "c1@eth0")
	s.run("the queue is empty", s.empty)
	if s.asked != 1 || s.entered != 0 {
		t.Errorf("asked %d times, entered %d; want once and never", s.asked, s.entered)
	}
}

func TestNotesComeWhileItRuns(t *testing.T) {
	s := newStage(t)
	left := false
	s.run("a note came and went", func() bool {
		if !left && s.empty() {
			s.leave("c1@eth0")
			left = true
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked == 1 && s.empty()
	})
}

// A queue that is removed under it is made again, and read on.
func TestTheQueueIsRemoved(t *testing.T) {
	s := newStage(t)
	step := 0
	s.run("a note came after it", func() bool {
		if step == 0 && s.empty() {
			if err := os.RemoveAll(s.Dir); err != nil {
				t.Fatal(err)
			}
			step++
		}
		if step == 1 && s.empty() {
			s.leave("c1@eth0")
			step++
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked == 1 && s.empty()
	})
}

// Where the queue cannot be watched it is looked at.
func TestNoWatch(t *testing.T) {
	s := newStage(t)
	file := s.Dir
	if err := os.WriteFile(file, nil, 0o600); err != nil { // so that there can be no queue, at first
		t.Fatal(err)
	}
	step := 0
	s.run("a note came after it", func() bool {
		if step == 0 && strings.Contains(s.said(), "cannot be watched") {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			s.leave("c1@eth0")
			step++
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked == 1 && s.empty()
	})
	if n := strings.Count(s.said(), "cannot be watched"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
}

func TestTooOldToMatter(t *testing.T) {
	s := newStage(t, "c1@eth0")
	s.bound = func(int) ([]lease.Lease, error) { return []lease.Lease{bound("c1", "10.0.0.2")}, nil }
	s.Clock = func() lease.Instant {
		later := now
		later.Boot += maxAge + time.Second
		return later
	}
	s.run("the queue is empty", s.empty)
	if s.entered != 0 || !strings.Contains(s.said(), errTooOld.Error()) {
		t.Errorf("entered %d times, said:\n%s", s.entered, s.said())
	}
}

// An address that no interface ever has does not keep others waiting for ever.
func TestAnAddressThatIsNowhere(t *testing.T) {
	s := newStage(t, "c1@eth0")
	s.bound = func(int) ([]lease.Lease, error) { return []lease.Lease{bound("c1", "10.0.0.2")}, nil }
	s.inside = errNotReady
	s.Clock = func() lease.Instant { // ten seconds later each time that it is asked
		s.mu.Lock()
		defer s.mu.Unlock()
		later := now
		later.Boot += time.Duration(s.entered) * 10 * time.Second
		return later
	}
	s.run("the queue is empty", s.empty)
	if s.entered != 4 || !strings.Contains(s.said(), errNotReady.Error()) {
		t.Errorf("entered %d times, want 4; said:\n%s", s.entered, s.said())
	}
}

func TestTheNamespaceHasEnded(t *testing.T) {
	s := newStage(t, "c1@eth0")
	s.bound = func(int) ([]lease.Lease, error) { return []lease.Lease{bound("c1", "10.0.0.2")}, nil }
	s.inside = errors.New("the namespace has ended")
	s.run("the queue is empty", s.empty)
	if s.entered != 1 || !strings.Contains(s.said(), "the namespace has ended") {
		t.Errorf("entered %d times, said:\n%s", s.entered, s.said())
	}
}

// Between the moment that the address can be used and the announcement the store
// is asked again: whatever it says is not the container's is not announced.
func TestNothingOfAnotherIsAnnounced(t *testing.T) {
	elsewhere := bound("c1", "10.0.0.2")
	elsewhere.Holder.Netns.Ino++
	held := bound("c1", "10.0.0.2")
	held.State = lease.Held
	otherPool := bound("c1", "10.0.0.2")
	otherPool.Pool.Network = "other"
	for story, now := range map[string][]lease.Lease{
		"released":            nil,
		"held":                {held},
		"another address":     {bound("c1", "10.0.0.3")},
		"another container":   {bound("c2", "10.0.0.2")},
		"another namespace":   {elsewhere},
		"another pool's same": {otherPool},
	} {
		t.Run(story, func(t *testing.T) {
			s := newStage(t, "c1@eth0")
			s.bound = func(ask int) ([]lease.Lease, error) {
				if ask == 1 {
					return []lease.Lease{bound("c1", "10.0.0.2")}, nil
				}
				return now, nil
			}
			s.Announced = func(context.Context, Announcement) { t.Error("it was announced") }
			s.run("the queue is empty", s.empty)
			if s.entered != 1 || !strings.Contains(s.said(), errNotHeld.Error()) {
				t.Errorf("entered %d times, want once, to look; said:\n%s", s.entered, s.said())
			}
		})
	}
}

// As long as nobody knows what the container holds its note stays.
func TestTheStoreIsBusy(t *testing.T) {
	s := newStage(t, "c1@eth0")
	s.bound = func(int) ([]lease.Lease, error) { return nil, errors.New("busy") }
	s.run("it has asked", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked > 0
	})
	if s.empty() {
		t.Error("the note is gone")
	}
}

// A note whose store cannot be read goes when nobody needs it any more, and all of them are spoken of once.
func TestTheStoreStaysUnreadable(t *testing.T) {
	s := newStage(t, "c1@eth0", "c2@eth0", "c3@eth0")
	s.bound = func(int) ([]lease.Lease, error) { return nil, errors.New("lost") }
	s.Clock = func() lease.Instant { // each question takes longer than announcements are of use
		s.mu.Lock()
		defer s.mu.Unlock()
		later := now
		later.Boot += time.Duration(s.asked) * (maxAge + time.Second)
		return later
	}
	s.run("the queue is empty", s.empty)
	if n := strings.Count(s.said(), "lost"); n != 1 || s.asked != 3 {
		t.Errorf("asked %d times, said %d times:\n%s", s.asked, n, s.said())
	}
}

// announce announces one address on a simulated clock.
func (s *stage) announce() error {
	var err error
	synctest.Test(s.t, func(*testing.T) {
		err = (&run{Announcer: s.Announcer}).announce(context.Background(), bound("c1", "10.0.0.2"), s.Log)
	})
	return err
}

// What is made of an announcement, which may wait for the store, holds up none of its repeats.
func TestAnnouncedAfterTheRepeats(t *testing.T) {
	s := newStage(t)
	s.bound = func(int) ([]lease.Lease, error) { return []lease.Lease{bound("c1", "10.0.0.2")}, nil }
	var after []int                                                                          // announcements
	s.Announced = func(context.Context, Announcement) { after = append(after, s.entered-1) } // one to look
	if err := s.announce(); err != nil || !slices.Equal(after, []int{len(repeats)}) {
		t.Errorf("%v; told after %d announcements, want once after %d", err, after, len(repeats))
	}
}

// Where it is not known for a moment whether the address is still held, that repeat is left out, and no other.
func TestBusyBetweenRepeats(t *testing.T) {
	for _, tc := range []struct {
		busy []int // questions
		told bool
	}{{[]int{1}, true}, {[]int{2, 4}, true}, {[]int{1, 2, 3, 4, 5}, false}} {
		t.Run(fmt.Sprint(tc.busy), func(t *testing.T) {
			s := newStage(t)
			busy := errors.New("busy")
			s.bound = func(ask int) ([]lease.Lease, error) {
				if slices.Contains(tc.busy, ask) {
					return nil, busy
				}
				return []lease.Lease{bound("c1", "10.0.0.2")}, nil
			}
			told := 0
			s.Announced = func(context.Context, Announcement) { told++ }
			err := s.announce()
			if sent := s.entered - 1; sent != len(repeats)-len(tc.busy) || tc.told != (err == nil) || tc.told != (told == 1) {
				t.Errorf("%v; announced %d times, told %d times", err, sent, told)
			}
			if !tc.told && !errors.Is(err, busy) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// More notes than it works on at once are all worked off.
func TestManyNotes(t *testing.T) {
	var names []string
	for i := range 2 * atOnce {
		names = append(names, lease.Holder{ContainerID: fmt.Sprint("c", i), IfName: "eth0"}.Name())
	}
	s := newStage(t, names...)
	s.run("the queue is empty", s.empty)
	if s.asked != 2*atOnce {
		t.Errorf("asked %d times, want %d", s.asked, 2*atOnce)
	}
}

// What ready wants of an interface, step by step.
func TestReady(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, as make test does")
	}
	runtime.LockOSThread() // and never unlocked: the namespace ends with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	mac, _ := net.ParseMAC("02:00:00:00:00:07")
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: mac}, PeerName: "peer"}); err != nil {
		t.Fatal(err)
	}
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	peer, err := netlink.LinkByName("peer")
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("10.9.8.7")
	want := func(step string, want bool) {
		t.Helper()
		link, err := ready(addr)
		for deadline := time.Now().Add(10 * time.Second); want && err != nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			link, err = ready(addr) // the kernel takes its time to know of a carrier
		}
		if want != (err == nil) || !want && !errors.Is(err, errNotReady) {
			t.Fatalf("%s: %v, want ready: %v", step, err, want)
		}
		if want && (link.Name != "eth0" || link.HardwareAddr.String() != mac.String()) {
			t.Errorf("%s: it is on %+v", step, link)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
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
