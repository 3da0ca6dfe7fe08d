package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// withoutNames is the SHA-256 of what the last version without reservation names writes for the
// same operations, and the dataDir of the journal's entry, which older versions ignore, without the
// size of the journal, which they count if it is missing.
const withoutNames = "170748a0548f164edf39e682cfbf311ddbb1751f8c4272ac72afed951e955bbc"

// TestAStoreWithoutNamesIsAsBefore verifies that a store without a reservation name has the bytes
// that earlier versions write.
func TestAStoreWithoutNamesIsAsBefore(t *testing.T) {
	s := open(t)
	bound := fresh("10.0.0.5", "db-0", "c1")
	held, err := lease.Apply(fresh("10.0.0.6", "db-1", "c2"), lease.Release{Holder: fresh("10.0.0.6", "", "c2").Holder},
		t0)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	update(t, s, func(tx *Tx) error {
		err := errors.Join(put(tx, bound), put(tx, held), tx.SetAdopted(testPool), tx.BeginBoot("b1"),
			tx.Log(About(bound, EventBound, t0, "why")), tx.SetRanges(testPool, sets("10.0.0.1-10.0.0.9")))
		all := content(tx)
		for _, at := range slices.SortedFunc(maps.Keys(all), func(a, b stored) int {
			return strings.Compare(a.bucket+"/"+a.key, b.bucket+"/"+b.key)
		}) {
			fmt.Fprintf(sum, "%q %q %s\n", at.bucket, at.key, all[at])
		}
		return err
	})
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != withoutNames {
		t.Errorf("the content has the sum %s, want %s", got, withoutNames)
	}
}

// TestPodReservation verifies that the record of a pod comes back, and what is rejected.
func TestPodReservation(t *testing.T) {
	s := open(t)
	p := PodReservation{Namespace: "db", Name: "registry-x", UID: "u1", Reservation: "registry",
		Window: lease.Window(time.Hour)}
	update(t, s, func(tx *Tx) error {
		if _, found := tx.PodReservation(p.Namespace, p.UID); found || tx.HasNames() {
			t.Error("a new store has names")
		}
		return tx.DeletePodReservation(p.Namespace, p.UID)
	})
	for _, bad := range []func(*PodReservation){
		func(p *PodReservation) { p.Reservation = "" },
		func(p *PodReservation) { p.Reservation = "a/b" },
		func(p *PodReservation) { p.UID = "" },
		func(p *PodReservation) { p.UID = "a\x00b" },
		func(p *PodReservation) { p.Namespace = "" },
	} {
		q := p
		bad(&q)
		set := func(tx *Tx) error { return tx.SetPodReservation(q, t0.Wall) }
		if err := s.Update(t.Context(), Options{}, set); err == nil {
			t.Errorf("%+v is accepted", q)
		}
	}
	update(t, s, func(tx *Tx) error { return tx.SetPodReservation(p, t0.Wall) })
	view(t, s, func(tx *Tx) {
		if got, found := tx.PodReservation(p.Namespace, p.UID); !found || got != p {
			t.Errorf("got %+v, %v", got, found)
		}
		if _, found := tx.PodReservation("web", p.UID); found {
			t.Error("the record of another namespace")
		}
		for got, stored := range tx.PodReservations() {
			if got != p || !stored.Equal(t0.Wall) {
				t.Errorf("listed: %+v, %v", got, stored)
			}
		}
		if found := tx.Check(); len(found) > 0 {
			t.Error(found)
		}
	})
	update(t, s, func(tx *Tx) error {
		return tx.put(bucketReservations, reservationKey("db", "u2"), []byte("damaged"))
	})
	view(t, s, func(tx *Tx) {
		if _, found := tx.PodReservation("db", "u2"); found {
			t.Error("a damaged record is read")
		}
	})
	update(t, s, func(tx *Tx) error { return tx.DeletePodReservation(p.Namespace, p.UID) })
	view(t, s, func(tx *Tx) {
		for got := range tx.PodReservations() {
			t.Errorf("left: %+v", got)
		}
	})
}

// FuzzPodReservation verifies that a record that can be read has a valid name, and reads the same
// after it is written again.
func FuzzPodReservation(f *testing.F) {
	r := storedReservation{PodReservation{Name: "registry-x", Reservation: "registry", Window: lease.Window(time.Hour)},
		time.Unix(1700000000, 0)}
	record := encode(reservationFields, &r, nil)
	f.Add("db", "u1", record[:len(record)-sumBytes])
	f.Add("", "", []byte{1, 1})
	f.Fuzz(func(t *testing.T, namespace, uid string, body []byte) {
		p, stored, err := decodeReservation(reservationKey(namespace, uid), seal(slices.Clone(body)))
		if err != nil {
			return
		}
		if !lease.IsReservation(p.Reservation) || p.Window < 0 {
			t.Fatalf("read as %+v", p)
		}
		s := open(t)
		if s.Update(t.Context(), Options{}, func(tx *Tx) error { return tx.SetPodReservation(p, stored) }) != nil {
			return // a key that no pod has
		}
		view(t, s, func(tx *Tx) {
			if again, found := tx.PodReservation(p.Namespace, p.UID); !found || again != p {
				t.Errorf("%+v is read again as %+v, %v", p, again, found)
			}
		})
	})
}
