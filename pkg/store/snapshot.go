package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// A snapshot is a copy of all leases in a separate file, in case the store is lost. The agent
// writes it. Records keep their checksums.
type snapshot struct {
	Format int       `json:"format"`
	Taken  time.Time `json:"taken"`
	Leases []record  `json:"leases"`
}

type record struct {
	DataDir string `json:"dataDir"`
	Network string `json:"network"`
	Record  []byte `json:"record"`
}

func (s *Store) snapshotPath() string { return filepath.Join(s.dirs.State, "snapshot.json") }

// snapshotBatch is the number of leases that are copied in one transaction.
const snapshotBatch = 128

// WriteSnapshot copies all leases to the snapshot, which is replaced atomically and synced. A lease
// that changes meanwhile is copied either as it was or as it is. If the leases are the same as in
// the last snapshot, nothing is written.
//
// The last snapshot may be the only copy of a store that was lost, or of a record that was damaged
// since. Therefore the new snapshot also contains the former leases of pools that the store does
// not know, and of addresses whose records cannot be read. If there are any, the snapshot keeps its
// former time, so that an old lease is not preferred to newer evidence from the host. If the store
// was never used, nothing is written.
func (s *Store) WriteSnapshot(ctx context.Context, now lease.Instant) error {
	last, err := s.readSnapshot()
	if errors.Is(err, ErrNewer) || errors.Is(err, ErrIO) {
		return err
	}
	snap, err := s.readAll(ctx, last, now)
	if err != nil {
		return err
	}
	if snap.equals(last) {
		return nil
	}
	b, err := json.Marshal(snap)
	if err == nil {
		err = writeWhole(s.snapshotPath(), b)
	}
	if err != nil {
		return fmt.Errorf("%w: snapshot: %w", ErrIO, err)
	}
	return nil
}

// readAll returns a snapshot of the store, including the leases that it keeps from the last one.
func (s *Store) readAll(ctx context.Context, last snapshot, now lease.Instant) (snapshot, error) {
	snap := snapshot{Format: formatNow, Taken: now.Wall}
	former := last.byAddress()
	var unknown map[lease.Pool]bool
	var at Position
	for more := true; more; {
		var batch []record
		from := at
		err := s.View(ctx, func(tx *Tx) error {
			batch = nil
			if !tx.Has(from) {
				return errReplaced
			}
			if unknown == nil {
				unknown = unknownOf(tx, last)
			}
			at, more = tx.After(from, snapshotBatch, func(l lease.Lease, err error) {
				switch r, copied := former[place{l.Pool, l.Address}]; {
				case unknown[l.Pool]:
				case err == nil:
					batch = append(batch, recordOf(l))
					if l.Reservation != "" {
						snap.Format = formatNames
					}
				case copied:
					batch = append(batch, r)
					snap.Taken, snap.Format = last.Taken, max(snap.Format, last.Format)
				}
			})
			return nil
		})
		if err != nil {
			return snapshot{}, err
		}
		snap.Leases = append(snap.Leases, batch...)
	}
	for _, r := range last.Leases {
		if unknown[r.pool()] {
			snap.Taken, snap.Format = last.Taken, max(snap.Format, last.Format)
			snap.Leases = append(snap.Leases, r)
		}
	}
	return snap, nil
}

func recordOf(l lease.Lease) record { return record{l.Pool.DataDir, l.Pool.Network, encode(l)} }

func (r record) pool() lease.Pool { return lease.Pool{DataDir: r.DataDir, Network: r.Network} }

// place identifies a lease by its pool and address.
type place struct {
	pool lease.Pool
	addr netip.Addr
}

func (s snapshot) byAddress() map[place]record {
	out := make(map[place]record, len(s.Leases))
	for _, r := range s.Leases {
		if l, err := decode(r.Record, r.pool()); err == nil {
			out[place{l.Pool, l.Address}] = r
		}
	}
	return out
}

// equals reports whether two snapshots have the same leases.
func (s snapshot) equals(o snapshot) bool {
	same := func(a, b record) bool { return a.pool() == b.pool() && bytes.Equal(a.Record, b.Record) }
	return s.Format == o.Format && slices.EqualFunc(s.Leases, o.Leases, same)
}

// unknownOf returns the pools of a snapshot that the store does not know: it replaced a lost one,
// or was removed before the node booted, which is the same as if it was never used.
func unknownOf(tx *Tx, snap snapshot) map[lease.Pool]bool {
	out := map[lease.Pool]bool{}
	for _, r := range snap.Leases {
		if p := r.pool(); !tx.Adopted(p) && (tx.Lost() != "" || !tx.hasLease(p)) {
			out[p] = true
		}
	}
	return out
}

// writeWhole replaces a file atomically: a reader sees either the former content or all of the new
// content, also after a power failure.
func writeWhole(path string, b []byte) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	return files.SyncDir(filepath.Dir(path))
}

// ReadSnapshot returns the leases of the last snapshot and its time, or none if there is no
// snapshot. It skips damaged records.
func (s *Store) ReadSnapshot() ([]lease.Lease, time.Time, error) {
	snap, err := s.readSnapshot()
	var out []lease.Lease
	for _, r := range snap.Leases {
		if l, err := decode(r.Record, r.pool()); err == nil {
			out = append(out, l)
		}
	}
	return out, snap.Taken, err
}

func (s *Store) readSnapshot() (snapshot, error) {
	b, err := readFile(s.snapshotPath())
	if errors.Is(err, fs.ErrNotExist) {
		return snapshot{}, nil
	}
	if err != nil {
		return snapshot{}, fmt.Errorf("%w: snapshot: %w", ErrIO, err)
	}
	var snap snapshot
	if err := json.Unmarshal(b, &snap); err != nil {
		return snapshot{}, fmt.Errorf("%w: snapshot: %w", ErrDamaged, err)
	}
	if snap.Format > formatNames {
		return snapshot{}, fmt.Errorf("%w: the snapshot has format %d, this version supports up to %d",
			ErrNewer, snap.Format, formatNames)
	}
	return snap, nil
}
