package events

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
)

func entry(event store.Event, pod, uid, addr, reason string) store.Entry {
	return store.Entry{
		Time: time.Unix(1_700_000_000, 0), Event: event, Network: "cbr0", Address: netip.MustParseAddr(addr),
		Namespace: "db", Name: pod, UID: uid, Container: "c-" + uid, IfName: "eth0", Window: lease.Window(time.Hour),
		Reason: reason,
	}
}

func withoutWindow(e store.Entry) store.Entry {
	e.Window = 0
	return e
}

func asNamed(e store.Entry) store.Entry {
	e.ReserveAs = "registry"
	return e
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name    string
		entries []store.Entry
		want    []string
	}{
		{"a first start", []store.Entry{
			entry(store.EventBound, "db-0", "u1", "10.0.0.2", ""),
			entry(store.EventReleased, "db-0", "u1", "10.0.0.2", "DEL"),
		}, nil},
		{"kept, both families", []store.Entry{
			entry(store.EventKept, "db-0", "u2", "10.0.0.2", "after 5m3s"),
			entry(store.EventKept, "db-0", "u2", "fd00::2", "after 5m3s"),
		}, []string{
			"AddressKept db-0 u2: kept 10.0.0.2: the pod was away for 5m3s; kept fd00::2: the pod was away for 5m3s"}},
		{"kept for a reservation name", []store.Entry{
			asNamed(entry(store.EventKept, "registry-x7k2p", "u2", "10.0.0.2", "after 5m3s")),
		}, []string{`AddressKept registry-x7k2p u2: kept 10.0.0.2: it was held for 5m3s as "registry"`}},
		{"taken over", []store.Entry{
			entry(store.EventTakenOver, "db-0", "u2", "10.0.0.2", "from container c1, whose sandbox is gone"),
		}, []string{"AddressKept db-0 u2: kept 10.0.0.2: taken over from container c1, whose sandbox is gone"}},
		{"late", []store.Entry{
			entry(store.EventBound, "db-0", "u1", "10.0.0.2", ""),
			entry(store.EventExpired, "db-0", "u1", "10.0.0.2", ""),
			entry(store.EventBound, "db-0", "u2", "10.0.0.3", ""),
		}, []string{"AddressChanged db-0 u2: got 10.0.0.3 instead of 10.0.0.2: " +
			"its window ended before the pod came back"}},
		{"late, but the address was free", []store.Entry{
			entry(store.EventExpired, "db-0", "u1", "10.0.0.2", ""),
			entry(store.EventBound, "db-0", "u2", "10.0.0.2", ""),
		}, nil},
		{"the old sandbox did not end in time", []store.Entry{
			entry(store.EventSuperseded, "db-0", "u1", "10.0.0.2", "container c1 outlived busyTimeout 2m0s"),
			entry(store.EventBound, "db-0", "u2", "10.0.0.3", ""),
		}, []string{"AddressChanged db-0 u2: got 10.0.0.3 instead of 10.0.0.2: " +
			"container c1 outlived busyTimeout 2m0s"}},
		{"yielded", []store.Entry{
			entry(store.EventYielded, "db-0", "u1", "10.0.0.2", "to pod db/web-7"),
			entry(store.EventBound, "db-0", "u2", "10.0.0.3", ""),
		}, []string{"HoldYielded! db-0 u1: 10.0.0.2 is no longer held: " +
			"the pool was exhausted, and the address went to pod db/web-7",
			"AddressChanged db-0 u2: got 10.0.0.3 instead of 10.0.0.2: " +
				"the pool was exhausted, and the address went to pod db/web-7"}},
		{"a cool-down yielded", []store.Entry{
			withoutWindow(entry(store.EventYielded, "db-0", "u1", "10.0.0.2", "to pod db/web-7")),
		}, nil},
		{"another address expired", []store.Entry{
			entry(store.EventBound, "db-0", "u1", "10.0.0.2", ""),
			entry(store.EventExpired, "db-0", "u1", "10.0.0.9", ""),
			entry(store.EventBound, "db-0", "u2", "10.0.0.3", ""),
		}, nil},
		{"no window when the address was lost", []store.Entry{
			withoutWindow(entry(store.EventBound, "db-0", "u1", "10.0.0.2", "")),
			withoutWindow(entry(store.EventExpired, "db-0", "u1", "10.0.0.2", "it was held for 2m0s")),
			entry(store.EventBound, "db-0", "u2", "10.0.0.3", ""),
		}, nil},
		{"released on request, followed by a cool-down", []store.Entry{
			entry(store.EventRevoked, "db-0", "u1", "10.0.0.2", "released on request"),
			withoutWindow(entry(store.EventExpired, "db-0", "u1", "10.0.0.2", "it was held for 2m0s")),
			entry(store.EventBound, "db-0", "u2", "10.0.0.3", ""),
		}, []string{"AddressChanged db-0 u2: got 10.0.0.3 instead of 10.0.0.2: released on request"}},
		{"served by host-local", []store.Entry{
			entry(store.EventBound, "db-0", "u1", "10.0.0.2", ""),
			entry(store.EventReleased, "db-0", "u1", "10.0.0.2", "DEL"),
			entry(store.EventImported, "db-0", "u2", "10.0.0.3", "host-local has given it to the container"),
			entry(store.EventImported, "db-0", "u2", "10.0.0.3", "again"),
			entry(store.EventImported, "web-0", "u3", "10.0.0.4", "file 10.0.0.4"),
		}, []string{"AddressChanged db-0 u2: got 10.0.0.3 instead of 10.0.0.2: " +
			"host-local has given it to the container"}},
		{"limited", []store.Entry{entry(store.EventLimited, "db-0", "u1", "10.0.0.2",
			"maxHeldShare is reached: the hold is a short one")},
			[]string{"ReservationLimited! db-0 u1: 10.0.0.2: maxHeldShare is reached: the hold is a short one"}},
		{"pool low", []store.Entry{entry(store.EventPoolLow, "db-0", "u1", "10.0.0.2", "1 of 20 addresses are left")},
			[]string{"AddressPoolLow! db-0 u1: network cbr0: 1 of 20 addresses are left"}},
		{"an entry without pod", []store.Entry{{Event: store.EventRecovered, Reason: "x"}}, nil},
	} {
		var r reader
		var got []string
		for _, n := range r.Read(c.entries, func(string, string, string) bool { return false }) {
			warning := ""
			if n.Warning && n.Reason != AddressChanged {
				warning = "!"
			}
			got = append(got, fmt.Sprintf("%s%s %s %s: %s", n.Reason, warning, n.Pod, n.UID, n.Text))
		}
		check.Slices(t, got, c.want, c.name)
	}
}

// The return of a pod without a window within its cool-down is reported only if the pod asks for a
// window now.
func TestOnlyRetainedPods(t *testing.T) {
	e := entry(store.EventKept, "web-0", "u2", "10.0.0.2", "after 3s")
	e.Window = 0
	for _, asks := range []bool{false, true} {
		var r reader
		got := r.Read([]store.Entry{e}, func(namespace, name, uid string) bool {
			return asks && name == "web-0" &&
				uid == "u2"
		})
		check.Equal(t, len(got) == 1, asks, "there is a notice:", got)
	}
}
