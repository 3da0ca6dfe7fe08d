package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func TestStoredWindows(t *testing.T) {
	s := New(Dirs{State: t.TempDir(), Run: t.TempDir()})
	key := lease.Key{Pool: testPool, Namespace: "db", Name: "db-0", IfName: "eth0"}
	seen := time.Unix(1_700_000_000, 0).UTC()
	update := func(fn func(*Tx) error) {
		t.Helper()
		if err := s.Update(context.Background(), Options{}, fn); err != nil {
			t.Fatal(err)
		}
	}
	update(func(tx *Tx) error { return tx.SetWindow(key, lease.Forever, seen) })
	update(func(tx *Tx) error {
		if w, known := tx.Window(key); w != lease.Forever || !known {
			t.Errorf("%s, %v", w, known)
		}
		found := 0
		tx.WindowsAfter(Position{}, 9, func(k lease.Key, w lease.Window, at time.Time) {
			found++
			if k != key || lease.Window(w) != lease.Forever || !at.Equal(seen) {
				t.Errorf("%+v has %s since %s", k, w, at)
			}
		})
		if found != 1 {
			t.Errorf("%d windows", found)
		}
		return tx.DeleteWindow(key)
	})
	update(func(tx *Tx) error {
		if _, known := tx.Window(key); known {
			t.Error("found after DeleteWindow")
		}
		// A record without a time.
		id, err := tx.poolID(key.Pool)
		if err != nil {
			return err
		}
		if err := tx.put(bucketWindows, podPrefix(id, key), binary.AppendVarint(nil, int64(time.Hour))); err != nil {
			return err
		}
		if w, known := tx.Window(key); w != lease.Window(time.Hour) || !known {
			t.Errorf("a record without a time: %s, %v", w, known)
		}
		return nil
	})
}

func TestWindowsAfter(t *testing.T) {
	s := open(t)
	const n = 7
	update(t, s, func(tx *Tx) error {
		var errs error
		for i := range n {
			errs = errors.Join(errs, tx.SetWindow(lease.Key{Pool: testPool, Namespace: "db", Name: fmt.Sprint("db-", i),
				IfName: "eth0"}, lease.Window(time.Hour), t0.Wall))
		}
		hour := binary.AppendVarint(nil, int64(time.Hour))
		return errors.Join(errs, tx.put(bucketWindows, []byte("not a key"), hour),
			tx.put(bucketWindows, []byte("no"), hour))
	})
	for limit := 1; limit <= n+2; limit++ {
		var got []string
		view(t, s, func(tx *Tx) {
			var at Position
			for more := true; more; {
				at, more = tx.WindowsAfter(at, limit, func(k lease.Key, _ lease.Window, _ time.Time) {
					got = append(got, k.Name)
				})
			}
		})
		if want := "db-0 db-1 db-2 db-3 db-4 db-5 db-6"; strings.Join(got, " ") != want {
			t.Errorf("%d at a time: %v", limit, got)
		}
	}
}

func FuzzDecodeWindow(f *testing.F) {
	f.Add(binary.AppendVarint(nil, int64(time.Hour)))
	f.Add(binary.AppendVarint(binary.AppendVarint(nil, int64(lease.Forever)), 1_700_000_000))
	f.Add([]byte{0x80})
	f.Fuzz(func(t *testing.T, v []byte) {
		w, seen, err := decodeWindow(v)
		if err != nil {
			return
		}
		again := binary.AppendVarint(nil, int64(w))
		if !seen.IsZero() {
			again = binary.AppendVarint(again, seen.Unix())
		}
		if w2, seen2, err := decodeWindow(again); err != nil || w2 != w || !seen2.Equal(seen) {
			t.Errorf("%x reads as %s %s, and that as %s %s (%v)", v, w, seen, w2, seen2, err)
		}
		if w < 0 || bytes.Equal(v, nil) {
			t.Errorf("%x reads as %s", v, w)
		}
	})
}
