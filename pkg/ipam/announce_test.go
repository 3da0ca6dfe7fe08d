package ipam

import (
	"context"
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
