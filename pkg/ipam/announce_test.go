package ipam

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// notes are what waits in the announce queue.
func (w *world) notes() string {
	files, _ := os.ReadDir(w.service.Store.AnnounceDir())
	var out []string
	for _, f := range files {
		out = append(out, f.Name())
	}
	return strings.Join(out, " ")
}

// Who comes back to an address has neighbours; who gets a fresh one has none.
func TestOnlyAReturnIsAnnounced(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	db := ask{pod: "db-0", container: "c1", window: hour}
	w.add(db)
	w.add(db) // again
	if w.notes() != "" || w.forgotten != nil {
		t.Errorf("a fresh address: notes %q, forgotten %v", w.notes(), w.forgotten)
	}
	w.stop("c1")
	db.container = "c2"
	w.add(db)
	w.same("the queue", w.notes(), "c2@eth0")
	w.same("forgotten", fmt.Sprint(w.forgotten), "[10.0.0.2 fd00::2]")
	w.forgotten = nil
	w.add(db)
	if w.forgotten != nil {
		t.Errorf("a repeated ADD: the pod is there, and its neighbours are forgotten: %v", w.forgotten)
	}
	w.del("c1") // late
	w.same("the queue after a late DEL of the former container", w.notes(), "c2@eth0")
	w.stop("c2")
	w.same("the queue after the DEL", w.notes(), "")
}

// A queue that cannot be written, and neighbours that cannot be forgotten, fail
// no ADD.
func TestAReturnThatCannotBeAnnounced(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	if err := os.WriteFile(w.service.Store.AnnounceDir(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.same("back", w.add(ask{pod: "db-0", container: "c2", window: hour}), "10.0.0.2")
	if !strings.Contains(strings.Join(w.warned, "\n"), "announce queue") {
		t.Errorf("no warning: %q", w.warned)
	}
}

func TestBound(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	bound := func(container string) string {
		t.Helper()
		leases, err := w.service.Bound(context.Background(), on(container, "eth0"))
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, l := range leases {
			out = append(out, l.Address.String())
		}
		return strings.Join(out, ",")
	}
	w.same("of an empty store", bound("c1"), "")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.same("of the holder", bound("c1"), "10.0.0.2,fd00::2")
	w.stop("c1")
	w.same("of the former holder", bound("c1"), "")
}

const (
	macA = "02:00:00:00:00:0a"
	macB = "02:00:00:00:00:0b"
)

func (w *world) keepMAC(container, has string, fixed bool, addrs ...string) string {
	w.t.Helper()
	hw, err := net.ParseMAC(has)
	if err != nil {
		w.t.Fatal(err)
	}
	var list []netip.Addr
	for _, a := range addrs {
		list = append(list, netip.MustParseAddr(a))
	}
	mac, ok, err := w.service.KeepMAC(context.Background(), on(container, "eth0"), list, hw, fixed)
	if err != nil {
		w.t.Fatal(err)
	}
	if !ok {
		return "none"
	}
	return mac.String()
}

func (w *world) macs(container string) string {
	leases, _ := w.service.Bound(context.Background(), on(container, "eth0"))
	var out []string
	for _, l := range leases {
		out = append(out, l.MAC)
	}
	return strings.Join(out, " ")
}

func TestTheMACStaysWithTheLease(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.same("the first life", w.keepMAC("c1", macA, false, "10.0.0.2", "fd00::2"), macA)
	w.same("both families know it", w.macs("c1"), macA+" "+macA)
	w.stop("c1")
	w.add(ask{pod: "db-0", container: "c2", window: hour})
	w.same("the second life", w.keepMAC("c2", macB, false, "10.0.0.2", "fd00::2"), macA)
	w.same("the former container", w.keepMAC("c1", macB, false, "10.0.0.2", "fd00::2"), "none")
	w.same("another's address", w.keepMAC("c2", macB, false, "10.0.0.99"), "none")
	w.same("one that somebody has chosen", w.keepMAC("c2", macB, true, "10.0.0.2", "fd00::2"), macB)
	w.same("and stays", w.macs("c2"), macB+" "+macB)
}

// A family that came later follows the one that was there.
func TestTheMACOfAFamilyAddedLater(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.keepMAC("c1", macA, false, "10.0.0.2")
	w.stop("c1")
	w.setRanges("10.0.0.0/24", "fd00::/64")
	w.add(ask{pod: "db-0", container: "c2", window: hour})
	w.same("it", w.keepMAC("c2", macB, false, "10.0.0.2", "fd00::2"), macA)
	w.same("both", w.macs("c2"), macA+" "+macA)
}

// Two living sandboxes never have one hardware address: a pod that does not come back to the
// address keeps its own, and so does the next pod that gets the address.
func TestTheMACGoesToNobodyElse(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "old", window: hour})
	w.keepMAC("old", macA, false, "10.0.0.2")
	again := ask{pod: "db-0", container: "new", uid: "u2", window: hour}
	w.refused(again, ErrAddressInUse)
	w.after(w.options.BusyTimeout)
	w.same("the old one outlives busyTimeout", w.add(again), "10.0.0.3")
	w.same("the new one has its own", w.keepMAC("new", macB, false, "10.0.0.3"), macB)
	w.same("the old one keeps its own", w.macs("old"), macA)

	w.stop("old")
	w.after(hour)
	w.add(ask{pod: "web-1", container: "web"})
	w.same("another pod at the address", w.keepMAC("web", "02:00:00:00:00:0c", false, "10.0.0.2"), "02:00:00:00:00:0c")
}

// A caller without a name comes back to nothing: nothing is written for it.
func TestTheMACOfNobody(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "x"})
	w.same("it", w.keepMAC("x", macA, false, "10.0.0.2"), "none")
	w.same("its lease", w.macs("x"), "")
}

func TestRecordMAC(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "db-1", container: "c2", window: hour})
	hw, _ := net.ParseMAC(macA)
	for _, container := range []string{"c1", "c9"} {
		if err := w.service.RecordMAC(context.Background(), on(container, "eth0"), hw); err != nil {
			t.Fatal(err)
		}
	}
	w.same("both families know it", w.macs("c1"), macA+" "+macA)
	w.same("nobody else does", w.macs("c2"), " ")
}

func TestAnUnusableMACIsNotKept(t *testing.T) {
	for _, s := range []string{"", "nonsense", "00:00:00:00:00:00", "01:00:5e:00:00:01", "02:00:00:00:00:00:00:01"} {
		own, _ := net.ParseMAC(macB)
		if got := macOf([]lease.Lease{{MAC: s}, {MAC: macA}}, own); got.String() != macA {
			t.Errorf("after %q: %s, want the next one", s, got)
		}
		if got := macOf([]lease.Lease{{MAC: s}}, own); got.String() != macB {
			t.Errorf("%q alone: %s, want its own", s, got)
		}
	}
}
