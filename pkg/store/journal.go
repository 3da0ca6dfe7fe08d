package store

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/record"
)

// JournalSize is the number of entries that the journal keeps.
const JournalSize = 4096

// maxReason is the largest size of an entry's reason in bytes: it may name thousands of ranges.
const maxReason = 1 << 10

// journalSlack is the number of entries that are removed at a time, so that not every new entry
// writes to both ends of the journal.
const journalSlack = 64

// Event is what happened to a lease, as the journal records it.
type Event string

const (
	EventReserved   Event = "Reserved"   // an address is held for a pod that never had it
	EventBound      Event = "Bound"      // a pod got a new address
	EventKept       Event = "Kept"       // a pod got its address again
	EventTakenOver  Event = "TakenOver"  // a pod got its address again from a dead holder
	EventReleased   Event = "Released"   // by its holder's DEL; a hold may follow
	EventOrphaned   Event = "Orphaned"   // its holder died without a DEL
	EventExpired    Event = "Expired"    // a hold ended
	EventYielded    Event = "Yielded"    // a hold was ended because the pool was exhausted
	EventRevoked    Event = "Revoked"    // released by a user, by the agent, or because the ranges changed
	EventSuperseded Event = "Superseded" // a pod got another address, because its old sandbox outlived busyTimeout
	EventRefused    Event = "Refused"    // an ADD was rejected
	EventLimited    Event = "Limited"    // a configured limit shortened a window or hold
	EventImported   Event = "Imported"   // a lease was created from what the host shows
	EventRecovered  Event = "Recovered"  // a lost store was replaced
	EventPoolLow    Event = "PoolLow"    // less than a tenth of a range set is free
)

// Entry is one entry of the journal.
type Entry struct {
	Time      time.Time    `json:"time"`
	Event     Event        `json:"event"`
	Network   string       `json:"network"`
	DataDir   string       `json:"-"` // of the pool
	Address   netip.Addr   `json:"address"`
	Namespace string       `json:"namespace"`
	Name      string       `json:"pod"`
	UID       string       `json:"uid"`
	Container string       `json:"container"`
	IfName    string       `json:"interface"`
	Window    lease.Window `json:"-"` // of the lease
	Reason    string       `json:"reason"`
	// ReserveAs is the lease's reservation name; "" if it has none.
	ReserveAs string `json:"reservation"`
}

// Place returns the address that the entry is about.
func (n Entry) Place() lease.Place {
	return lease.Place{Pool: lease.Pool{DataDir: n.DataDir, Network: n.Network}, Address: n.Address}
}

// About returns a journal entry for an event of a lease, with the wall clock of now.
func About(l lease.Lease, ev Event, now lease.Instant, reason string) Entry {
	return Entry{
		Time: now.Wall, Event: ev, DataDir: l.Pool.DataDir, Network: l.Pool.Network, Address: l.Address,
		Namespace: l.Namespace, Name: l.Name, UID: l.UID,
		Container: l.Holder.ContainerID, IfName: l.Holder.IfName, Window: l.Window, Reason: reason,
		ReserveAs: l.ReserveAs,
	}
}

// entryFields are the fields of an entry. New ones are added at the end.
var entryFields = []record.Field[Entry]{
	nil,
	func(n *Entry) any { return &n.Time },
	func(n *Entry) any { return (*string)(&n.Event) },
	func(n *Entry) any { return &n.Network },
	func(n *Entry) any { return &n.Address },
	func(n *Entry) any { return &n.Namespace },
	func(n *Entry) any { return &n.Name },
	func(n *Entry) any { return &n.UID },
	func(n *Entry) any { return &n.Container },
	func(n *Entry) any { return &n.IfName },
	func(n *Entry) any { return &n.Reason },
	func(n *Entry) any { return (*int64)(&n.Window) },
	func(n *Entry) any { return &n.ReserveAs },
	func(n *Entry) any { return &n.DataDir },
}

// Log appends to the journal.
func (tx *Tx) Log(n Entry) error {
	b := tx.bucket(bucketJournal)
	b.FillPercent = 0.9 // keys are only appended
	seq, err := b.NextSequence()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	n.Reason = strings.ToValidUTF8(n.Reason[:min(len(n.Reason), maxReason)], "")
	err = tx.put(bucketJournal, binary.BigEndian.AppendUint64(nil, seq), record.Encode(entryFields, &n, nil))
	if err != nil || seq%journalSlack != 0 {
		return err
	}
	c := b.Cursor()
	for k, _ := c.First(); k != nil && binary.BigEndian.Uint64(k)+JournalSize <= seq; k, _ = c.First() {
		if err := tx.delete(bucketJournal, k); err != nil {
			return err
		}
	}
	return nil
}

// Entries yields the entries with a number greater than after, the oldest first, except damaged
// ones. Numbers start at 1 and increase by one. A store that replaced a lost one starts at 1 again.
func (tx *Tx) Entries(after uint64) iter.Seq2[uint64, Entry] {
	return func(yield func(uint64, Entry) bool) {
		c := tx.bucket(bucketJournal).Cursor()
		k, v := c.Seek(binary.BigEndian.AppendUint64(nil, after+1))
		for ; k != nil; k, v = c.Next() {
			n, _, err := record.Decode(entryFields, v)
			if err == nil && !yield(binary.BigEndian.Uint64(k), n) {
				return
			}
		}
	}
}

// JournalEnd returns the number of the last entry.
func (tx *Tx) JournalEnd() uint64 { return tx.bucket(bucketJournal).Sequence() }

// Count adds to a counter of the store, which the agent publishes as a metric. A transaction that
// changes nothing else must not call Count, because the counter alone would make it write.
func (tx *Tx) Count(name string, by uint64) error {
	v := binary.BigEndian.AppendUint64(nil, tx.Counter(name)+by)
	return tx.put(bucketCounters, []byte(name), v)
}

// Counter returns the value of a counter.
func (tx *Tx) Counter(name string) uint64 {
	if v := tx.bucket(bucketCounters).Get([]byte(name)); len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// Counters returns all counters.
func (tx *Tx) Counters() map[string]uint64 {
	out := map[string]uint64{}
	for k := range tx.prefixed(bucketCounters, nil) {
		out[string(k)] = tx.Counter(string(k))
	}
	return out
}
