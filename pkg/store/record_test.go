package store

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/record"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

var testPool = lease.Pool{DataDir: "/var/lib/cni/networks", Network: "cbr0"}

// TestFormat verifies what other versions write and read.
func TestFormat(t *testing.T) {
	at := func(n int64, boot string) lease.Instant {
		return lease.Instant{Wall: time.Unix(n, 5).UTC(), Boot: time.Duration(n) * 7, BootID: boot}
	}
	l := lease.Lease{
		ID: "0123456789abcdef", Address: netip.MustParseAddr("10.0.0.5"), Set: "s", State: lease.Held,
		Namespace: "db", Name: "db-0", UID: "u1", NamespaceUID: "n1", ReserveAs: "registry",
		Holder: lease.Holder{ContainerID: "c1", IfName: "eth0", BootID: "b1",
			Netns: lease.Netns{Path: "/run/netns/x", Dev: 4, Ino: 4026532}},
		MAC: "02:00:00:00:00:01", Window: lease.Window(time.Hour), MaxWindow: lease.Window(2 * time.Hour),
		CoolDown: time.Minute, HeldLimit: 9, BoundAt: at(1700000000, "b1"), Owner: "StatefulSet.apps/db", Leaving: true,
		IsHold: true, ReleasedAt: at(1700000100, "b2"), Hold: lease.Window(time.Hour), Superseded: true,
		RefusedAt: at(1700000200, "b1"), RefusedFor: "u2", Extra: []byte{40, 1, 'A'}, // a field of a newer version
	}
	valid := l // another in all that Validate rejects
	valid.Pool, valid.Leaving, valid.Superseded, valid.HeldLimit = testPool, false, false, lease.NoneHeld
	if again, err := decodeLease(encodeLease(valid), testPool); err != nil || !reflect.DeepEqual(again, valid) {
		t.Errorf("%+v, %v; want %+v", again, err, valid)
	}
	n := Entry{
		Time: time.Unix(1700000000, 5).UTC(), Event: EventKept, Network: "net", DataDir: "/d", Address: l.Address,
		Namespace: "db", Name: "db-0", UID: "u1", Container: "c1", IfName: "eth0", Window: lease.Window(time.Hour),
		Reason: "r", ReserveAs: "registry",
	}
	r := storedPod{NamedPod{Name: "db-0", ReserveAs: "registry", Window: lease.Window(time.Hour)},
		1700000000}
	for what, c := range map[string]struct {
		got  []byte
		want string
	}{
		"a lease": {encodeLease(l), "" +
			"01040a00000502103031323334353637383961626364656603017304010405026462060464622d3007027531080263310904" +
			"657468300a0c2f72756e2f6e65746e732f780b0504a4e1f5010c0262310d1130323a30303a30303a30303a30303a30310e07" +
			"8080c58bc6d1010f0680e0ba84bf03100112110e8a80d0e2c6bfce972f80dcdcd45812010213118aa087eaafc5ce972ff8e6" +
			"dcd45800623214078080c58bc6d101150102160e8ac0bef198cbce972ff0f1dcd45817027532180780808a978ca303191353" +
			"7461746566756c5365742e617070732f64621a026e311b0872656769737472791c0102280141c1373cb0e3b16aa7"},
		"an entry": {record.Encode(entryFields, &n, nil), "" +
			"01098a80d0e2c6bfce972f02044b65707403036e657404040a00000505026462060464622d30070275310802633109046574" +
			"68300a01720b078080c58bc6d1010c0872656769737472790d022f645b7de510dba45895"},
		"a reservation": {record.Encode(namedPodFields, &r, nil),
			"010464622d300208726567697374727903078080c58bc6d101040580c49fd50c33606ecd2835ba35"},
	} {
		check.Equal(t, hex.EncodeToString(c.got), c.want, what)
	}
	stored := record.Encode(namedPodFields, &r, nil)
	if again, _, err := record.Decode(namedPodFields, stored); err != nil || again != r {
		t.Errorf("%+v, %v; want %+v", again, err, r)
	}
	if again, _, err := record.Decode(entryFields, record.Encode(entryFields, &n, nil)); err != nil || again != n {
		t.Errorf("%+v, %v; want %+v", again, err, n)
	}
}

func TestFlippedBitIsDetected(t *testing.T) {
	b := encodeLease(fresh("10.0.0.5", "db-0", "c1"))
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if l, err := decodeLease(b, testPool); err == nil {
				t.Fatalf("bit %d of byte %d: read as %+v", bit, i, l)
			}
			b[i] ^= 1 << bit
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(encodeLease(fresh("10.0.0.5", "db-0", "c1")))
	f.Add(record.Encode(entryFields, &Entry{Event: EventBound, Network: "n"}, nil))
	f.Fuzz(func(t *testing.T, body []byte) {
		sealed := record.Seal(bytes.Clone(body)) // otherwise most inputs fail the checksum
		for _, b := range [][]byte{body, sealed} {
			_, _, _ = record.Decode(entryFields, b)
			l, err := decodeLease(b, testPool)
			if err != nil {
				continue
			}
			again, err := decodeLease(encodeLease(l), testPool)
			must.Succeed(t, err, l, "does not read back")
			if !reflect.DeepEqual(l, again) {
				t.Fatalf("got %+v, then %+v", l, again)
			}
		}
	})
}

// A field that cannot be read damages the record, whatever its checksum says.
func TestFieldsThatCannotBeRead(t *testing.T) {
	l := fresh("10.0.0.5", "db-0", "c1")
	whole := encodeLease(l)
	whole = whole[:len(whole)-record.SumBytes]
	const netns, bound, refused, maxWindow = 11, 17, 22, 24
	one := func(tag int, v ...byte) []byte { return record.AppendField(nil, tag, v) }
	for what, more := range map[string][]byte{
		"a number that is cut off":       one(maxWindow, 0x80),
		"a number and more":              one(maxWindow, 2, 2),
		"an instant without a wall":      one(refused, 0x80),
		"an instant without a boot":      one(refused, 4),
		"an instant with half a boot id": one(refused, 2, 2, 1),
		"a field twice":                  slices.Concat(one(maxWindow, 2), one(maxWindow, 2)),
		"a field out of order":           one(bound, 2, 2),
		"half a tag":                     {0x80},
		"no length":                      {maxWindow},
		"half a length":                  {maxWindow, 0x80},
		"an empty field":                 {maxWindow, 0},
		"a field that is cut off":        {maxWindow, 2, 3},
	} {
		got, err := decodeLease(record.Seal(slices.Concat(whole, more)), l.Pool)
		check.Is(t, err, ErrDamaged, what, got)
	}
	if got, err := decodeLease(record.Seal(slices.Clone(whole)), l.Pool); err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("unchanged: %+v, %v", got, err)
	}
	for _, b := range [][]byte{nil, make([]byte, 7), make([]byte, 8), record.Seal(one(netns, 4)),
		record.Seal(one(netns, 4, 5, 6))} {
		got, err := decodeLease(b, l.Pool)
		check.Is(t, err, ErrDamaged, b, got)
	}
}
