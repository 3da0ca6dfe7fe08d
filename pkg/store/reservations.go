package store

import (
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// PodReservation is the reservation name of a pod, as the agent has read it from the pod's
// annotations for an ADD whose runtime does not pass them.
type PodReservation struct {
	Namespace, Name, UID string
	Reservation          string
	Window               lease.Window
}

// storedReservation is the record of a PodReservation, in JSON.
type storedReservation struct {
	PodReservation
	Stored time.Time
}

func reservationKey(namespace, uid string) []byte { return []byte(namespace + "\x00" + uid) }

// PodReservation returns the record of a pod, and reports whether there is one.
func (tx *Tx) PodReservation(namespace, uid string) (PodReservation, bool) {
	b := tx.bucket(bucketReservations)
	if b == nil || uid == "" {
		return PodReservation{}, false
	}
	r, ok := decodeReservation(b.Get(reservationKey(namespace, uid)))
	return r.PodReservation, ok
}

// reservationIdle is how long a PodReservation stays in the store without an ADD that uses it.
const reservationIdle = 24 * time.Hour

// SetPodReservation stores the record of a pod, and removes those that were stored reservationIdle
// ago. now is the current time.
func (tx *Tx) SetPodReservation(p PodReservation, now time.Time) error {
	if !lease.IsReservation(p.Reservation) || !lease.IsNamespace(p.Namespace) || p.UID == "" || !lease.IsUID(p.UID) {
		return fmt.Errorf("store: reservation name %q of pod %s/%s (%s) is not valid", p.Reservation, p.Namespace,
			p.Name, p.UID)
	}
	if _, err := tx.b.CreateBucketIfNotExists(bucketReservations); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	var idle []PodReservation
	for old, stored := range tx.PodReservations() {
		if now.Sub(stored) >= reservationIdle {
			idle = append(idle, old)
		}
	}
	for _, old := range idle {
		if err := tx.DeletePodReservation(old.Namespace, old.UID); err != nil {
			return err
		}
	}
	v, err := json.Marshal(storedReservation{p, now})
	if err != nil {
		return fmt.Errorf("store: reservation name of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return tx.put(bucketReservations, reservationKey(p.Namespace, p.UID), v)
}

// DeletePodReservation removes the record of a pod, if there is one.
func (tx *Tx) DeletePodReservation(namespace, uid string) error {
	k := reservationKey(namespace, uid)
	if b := tx.bucket(bucketReservations); b == nil || b.Get(k) == nil {
		return nil
	}
	return tx.delete(bucketReservations, k)
}

// PodReservations yields all records that can be read, and when each was stored.
func (tx *Tx) PodReservations() iter.Seq2[PodReservation, time.Time] {
	return func(yield func(PodReservation, time.Time) bool) {
		if tx.bucket(bucketReservations) == nil {
			return
		}
		for _, v := range tx.prefixed(bucketReservations, nil) {
			if r, ok := decodeReservation(v); ok && !yield(r.PodReservation, r.Stored) {
				return
			}
		}
	}
}

func decodeReservation(v []byte) (r storedReservation, ok bool) {
	err := json.Unmarshal(v, &r)
	return r, err == nil && lease.IsReservation(r.Reservation) && r.Window >= 0
}

// reservationSegment is what the index by key has in place of the name of a pod for the entries of
// a reservation name. No pod has a name with that first byte.
func reservationSegment(name string) string { return "@" + name }
