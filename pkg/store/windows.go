package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// The agent reads windows from the annotations of pods and stores them by key, for later ADDs whose
// runtime does not pass annotations. Each has the time at which a pod last used it, so that the
// windows of pods that do not come back can be removed.

// Window returns the window that was stored for a key.
func (tx *Tx) Window(key lease.Key) (lease.Window, bool) {
	w, _, ok := tx.WindowSeen(key)
	return w, ok
}

// WindowSeen returns the window of a key, and when it was last in use.
func (tx *Tx) WindowSeen(key lease.Key) (w lease.Window, seen time.Time, ok bool) {
	id, ok := tx.pools[key.Pool]
	if !ok {
		return 0, time.Time{}, false
	}
	w, seen, err := decodeWindow(tx.bucket(bucketWindows).Get(podPrefix(id, key)))
	return w, seen, err == nil
}

// SetWindow stores the window of a key. seen is the current time.
func (tx *Tx) SetWindow(key lease.Key, w lease.Window, seen time.Time) error {
	id, err := tx.poolID(key.Pool)
	if err != nil {
		return err
	}
	v := binary.AppendVarint(nil, int64(w))
	return tx.put(bucketWindows, podPrefix(id, key), binary.AppendVarint(v, seen.Unix()))
}

// DeleteWindow removes the window of a key.
func (tx *Tx) DeleteWindow(key lease.Key) error {
	id, ok := tx.pools[key.Pool]
	if !ok {
		return nil
	}
	return tx.delete(bucketWindows, podPrefix(id, key))
}

// WindowsAfter calls fn for up to limit stored windows after a position, except damaged ones. It
// returns the position to continue from, and whether there are more windows.
func (tx *Tx) WindowsAfter(m Position, limit int, fn func(key lease.Key, w lease.Window,
	seen time.Time)) (next Position, more bool) {
	return tx.next(bucketWindows, m, limit, func(k, v []byte) {
		key, ok := tx.splitPod(k)
		if w, seen, err := decodeWindow(v); ok && err == nil {
			fn(key, w, seen)
		}
	})
}

// splitPod is the inverse of podPrefix.
func (tx *Tx) splitPod(k []byte) (lease.Key, bool) {
	if len(k) < 4 {
		return lease.Key{}, false
	}
	p, ok := tx.names[poolID(binary.BigEndian.Uint32(k))]
	parts := bytes.Split(k[4:], []byte{0})
	if !ok || len(parts) != 4 {
		return lease.Key{}, false
	}
	return lease.Key{Pool: p, Namespace: string(parts[0]), Name: string(parts[1]), IfName: string(parts[2])}, true
}

// decodeWindow decodes a window and the time at which it was last in use. The time is zero if the
// record has none.
func decodeWindow(v []byte) (lease.Window, time.Time, error) {
	w, n := binary.Varint(v)
	if n <= 0 || w < 0 {
		return 0, time.Time{}, fmt.Errorf("%w: no window", ErrDamaged)
	}
	if n == len(v) {
		return lease.Window(w), time.Time{}, nil
	}
	seen, m := binary.Varint(v[n:])
	if m != len(v)-n {
		return 0, time.Time{}, fmt.Errorf("%w: no time", ErrDamaged)
	}
	return lease.Window(w), time.Unix(seen, 0).UTC(), nil
}
