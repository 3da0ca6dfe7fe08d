package store

import (
	"bytes"
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

// storedReservation is the record of a PodReservation, whose key has the namespace and the UID.
type storedReservation struct {
	PodReservation
	stored time.Time
}

// reservationFields are the fields of a storedReservation. New ones are added at the end.
var reservationFields = []fieldOf[storedReservation]{
	{},
	text(func(r *storedReservation) *string { return &r.Name }),
	text(func(r *storedReservation) *string { return &r.Reservation }),
	number(func(r *storedReservation) *lease.Window { return &r.Window }),
	unixTime(time.Second, func(r *storedReservation) *time.Time { return &r.stored }),
}

func reservationKey(namespace, uid string) []byte { return []byte(namespace + "\x00" + uid) }

// PodReservation returns the record of a pod, and reports whether there is one.
func (tx *Tx) PodReservation(namespace, uid string) (PodReservation, bool) {
	b := tx.bucket(bucketReservations)
	if b == nil || uid == "" {
		return PodReservation{}, false
	}
	k := reservationKey(namespace, uid)
	p, _, err := decodeReservation(k, b.Get(k))
	return p, err == nil
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
	record := encode(reservationFields, &storedReservation{p, now}, nil)
	return tx.put(bucketReservations, reservationKey(p.Namespace, p.UID), record)
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
		for k, v := range tx.prefixed(bucketReservations, nil) {
			if p, stored, err := decodeReservation(k, v); err == nil && !yield(p, stored) {
				return
			}
		}
	}
}

func decodeReservation(k, v []byte) (PodReservation, time.Time, error) {
	r, _, err := decode(reservationFields, v)
	namespace, uid, _ := bytes.Cut(k, []byte{0})
	r.Namespace, r.UID = string(namespace), string(uid)
	if err == nil && (!lease.IsReservation(r.Reservation) || r.Window < 0) {
		err = fmt.Errorf("%w: no reservation name", ErrDamaged)
	}
	return r.PodReservation, r.stored, err
}

// reservationSegment is what the index by key has in place of the name of a pod for the entries of
// a reservation name. No pod has a name with that first byte.
func reservationSegment(name string) string { return "@" + name }

func isReservationSegment(segment []byte) bool { return bytes.HasPrefix(segment, []byte("@")) }
