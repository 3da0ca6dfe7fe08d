package store

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/record"
)

// NamedPod is the reservation name of a pod, as the agent has read it from the pod's
// annotations for an ADD whose runtime does not pass them.
type NamedPod struct {
	Namespace, Name, UID string
	ReserveAs            string
	Window               lease.Window
}

// storedPod is the record of a NamedPod, whose key has the namespace and the UID.
type storedPod struct {
	NamedPod
	stored int64 // Unix time
}

// namedPodFields are the fields of a storedPod. New ones are added at the end.
var namedPodFields = []record.Field[storedPod]{
	nil,
	func(r *storedPod) any { return &r.Name },
	func(r *storedPod) any { return &r.ReserveAs },
	func(r *storedPod) any { return (*int64)(&r.Window) },
	func(r *storedPod) any { return &r.stored },
}

func namedPodKey(namespace, uid string) []byte { return []byte(namespace + "\x00" + uid) }

// NamedPod returns the record of a pod, and reports whether there is one.
func (tx *Tx) NamedPod(namespace, uid string) (NamedPod, bool) {
	k := namedPodKey(namespace, uid)
	p, _, err := decodeNamedPod(k, tx.bucket(bucketNamedPods).Get(k))
	return p, err == nil
}

// namedPodIdle is how long a NamedPod stays in the store without an ADD that uses it.
const namedPodIdle = 24 * time.Hour

// SetNamedPod stores the record of a pod, and removes those that were stored namedPodIdle
// ago. now is the current time.
func (tx *Tx) SetNamedPod(p NamedPod, now time.Time) error {
	if !lease.IsReserveAs(p.ReserveAs) || !lease.IsNamespace(p.Namespace) || p.UID == "" || !lease.IsUID(p.UID) {
		return fmt.Errorf("store: reservation name %q of pod %s/%s (%s) is not valid", p.ReserveAs, p.Namespace,
			p.Name, p.UID)
	}
	for old, stored := range maps.Collect(tx.NamedPods()) {
		if now.Sub(stored) >= namedPodIdle {
			if err := tx.DeleteNamedPod(old.Namespace, old.UID); err != nil {
				return err
			}
		}
	}
	return tx.put(bucketNamedPods, namedPodKey(p.Namespace, p.UID),
		record.Encode(namedPodFields, &storedPod{p, now.Unix()}, nil))
}

// DeleteNamedPod removes the record of a pod, if there is one.
func (tx *Tx) DeleteNamedPod(namespace, uid string) error {
	k := namedPodKey(namespace, uid)
	if tx.bucket(bucketNamedPods).Get(k) == nil {
		return nil
	}
	return tx.delete(bucketNamedPods, k)
}

// NamedPods yields all records that can be read, and when each was stored.
func (tx *Tx) NamedPods() iter.Seq2[NamedPod, time.Time] {
	return func(yield func(NamedPod, time.Time) bool) {
		for k, v := range tx.prefixed(bucketNamedPods, nil) {
			if p, stored, err := decodeNamedPod(k, v); err == nil && !yield(p, stored) {
				return
			}
		}
	}
}

func decodeNamedPod(k, v []byte) (NamedPod, time.Time, error) {
	r, _, err := record.Decode(namedPodFields, v)
	namespace, uid, _ := bytes.Cut(k, []byte{0})
	r.Namespace, r.UID = string(namespace), string(uid)
	if err == nil && (!lease.IsReserveAs(r.ReserveAs) || r.Window < 0) {
		err = fmt.Errorf("%w: no reservation name", ErrDamaged)
	}
	return r.NamedPod, time.Unix(r.stored, 0).UTC(), err
}

// reservationMark is before the reservation name that the index by key has in place of the name of
// a pod. No pod has a name with that first byte.
const reservationMark = "@"
