package store

import (
	"bytes"
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

var testPool = lease.Pool{DataDir: "/var/lib/cni/networks", Network: "cbr0"}

func someInstant(t *rapid.T, label string) lease.Instant {
	return lease.Instant{
		Wall:   time.Unix(0, rapid.Int64Range(1, 1<<61).Draw(t, label)).UTC(),
		Boot:   time.Duration(rapid.Int64Range(0, 1<<60).Draw(t, label+" boot")),
		BootID: rapid.SampledFrom([]string{"", "b1", "b2"}).Draw(t, label+" id"),
	}
}

// someLease draws a valid lease.
func someLease(t *rapid.T) lease.Lease {
	text := rapid.StringMatching(`[a-z0-9-]{0,12}`)
	addr := netip.AddrFrom4([4]byte{10, 0, byte(rapid.IntRange(0, 1).Draw(t, "hi")),
		byte(rapid.IntRange(0, 255).Draw(t, "lo"))})
	if rapid.Bool().Draw(t, "v6") {
		addr = netip.MustParseAddr("fd00::1:2").Next()
	}
	l := lease.Lease{
		ID: rapid.StringMatching(`[0-9a-f]{16}`).Draw(t, "id"), Pool: testPool, Address: addr, Set: text.Draw(t, "set"),
		State: lease.Bound, UID: text.Draw(t, "uid"), MAC: text.Draw(t, "mac"),
		Holder: lease.Holder{
			ContainerID: rapid.StringMatching(`[a-z0-9]{1,64}`).Draw(t, "cid"), IfName: "eth0",
			Netns:  lease.Netns{Path: "/run/netns/x", Dev: 4, Ino: rapid.Uint64().Draw(t, "ino")},
			BootID: rapid.SampledFrom([]string{"", "b1"}).Draw(t, "boot"),
		},
		Window:    lease.Window(rapid.Int64Range(0, 1<<62).Draw(t, "window")),
		Soft:      time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "soft")),
		MaxWindow: lease.Window(rapid.Int64Range(0, 1<<62).Draw(t, "max")),
		HeldLimit: rapid.IntRange(lease.NoneHeld, 99).Draw(t, "limit"),
		Owner:     text.Draw(t, "owner"),
		BoundAt:   someInstant(t, "bound"),

		NamespaceUID: text.Draw(t, "namespace uid"),
	}
	if l.Holder.Netns.Ino == 0 {
		l.Holder.Netns.Dev = 0 // unknown as a whole
	}
	if rapid.Bool().Draw(t, "pod") {
		l.Namespace, l.Name = "ns"+text.Draw(t, "ns"), "pod"+text.Draw(t, "name")
	}
	if rapid.Bool().Draw(t, "held") {
		l.State, l.Hold, l.ReleasedAt = lease.Held, lease.Window(l.Soft), someInstant(t, "released")
		l.Firm = l.Name != "" && l.Hold > 0
	} else if rapid.Bool().Draw(t, "superseded") {
		l.Superseded = true
	}
	if l.Name != "" && rapid.Bool().Draw(t, "named") {
		l.Reservation = rapid.StringMatching(`[a-z]([a-z0-9-]{0,61}[a-z0-9])?`).Draw(t, "reservation")
		l.Leaving = l.State == lease.Bound && !l.Superseded && rapid.Bool().Draw(t, "leaving")
	}
	if rapid.Bool().Draw(t, "refused") {
		l.RefusedAt, l.RefusedFor = someInstant(t, "refused"), "u2"
	}
	return l
}

func TestRecordsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := someLease(t)
		got, err := decode(encode(l), testPool)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, l) {
			t.Fatalf("got  %+v\nwant %+v", got, l)
		}
	})
}

// A field of a newer version is kept by an older one.
func TestUnknownFieldsAreKept(t *testing.T) {
	l := fresh("10.0.0.5", "db-0", "c1")
	e := encoder{b: encode(l)}
	e.b = e.b[:len(e.b)-sumBytes]
	e.text(tagEnd+7, "from the future")
	got, err := decode(e.seal(), testPool)
	if err != nil {
		t.Fatal(err)
	}
	got.UID = "changed"
	if again := encode(got); !bytes.Contains(again, []byte("from the future")) {
		t.Error("the unknown field was lost")
	}
}

func TestFlippedBitIsDetected(t *testing.T) {
	b := encode(fresh("10.0.0.5", "db-0", "c1"))
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if l, err := decode(b, testPool); err == nil {
				t.Fatalf("bit %d of byte %d: read as %+v", bit, i, l)
			}
			b[i] ^= 1 << bit
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(encode(fresh("10.0.0.5", "db-0", "c1")))
	f.Add(encodeEntry(Entry{Event: EventBound, Network: "n"}))
	f.Fuzz(func(t *testing.T, body []byte) {
		sealed := (&encoder{b: bytes.Clone(body)}).seal() // otherwise most inputs fail the checksum
		for _, b := range [][]byte{body, sealed} {
			_, _ = decodeEntry(b)
			l, err := decode(b, testPool)
			if err != nil {
				continue
			}
			again, err := decode(encode(l), testPool)
			if err != nil {
				t.Fatalf("%+v does not read back: %v", l, err)
			}
			if !reflect.DeepEqual(l, again) {
				t.Fatalf("got %+v, then %+v", l, again)
			}
		}
	})
}

// A field that cannot be read damages the record, whatever its checksum says.
func TestFieldsThatCannotBeRead(t *testing.T) {
	l := fresh("10.0.0.5", "db-0", "c1")
	l.Owner = ""
	for name, add := range map[string]func(*encoder){
		"a number that is cut off":     func(e *encoder) { e.bytes(tagMaxWindow, []byte{0x80}) },
		"a number and more":            func(e *encoder) { e.bytes(tagMaxWindow, []byte{2, 2}) },
		"a namespace without an inode": func(e *encoder) { e.bytes(tagNetnsFile, []byte{4}) },
		"an instant without a boot":    func(e *encoder) { e.bytes(tagRefusedAt, []byte{4}) },
		"a field twice":                func(e *encoder) { e.text(tagOwner, "a"); e.text(tagOwner, "b") },
	} {
		whole := encode(l)
		e := &encoder{b: append([]byte(nil), whole[:len(whole)-sumBytes]...)}
		if _, err := decode(e.seal(), l.Pool); err != nil {
			t.Fatal(err)
		}
		add(e)
		if got, err := decode(e.seal(), l.Pool); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, v := range [][]byte{nil, {4}, {4, 5, 6}, {0x80}, {4, 0x80}} {
		if dev, ino, err := netnsFile(v); err == nil {
			t.Errorf("%v is a namespace %d %d", v, dev, ino)
		}
	}
}
