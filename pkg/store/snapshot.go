package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// A snapshot is a copy of all leases in a file of its own, for the day when the
// store is lost: the agent takes one now and then. Records keep their checksums
// in it.
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

// snapshotBatch is how many leases are copied under one lock.
const snapshotBatch = 128

// WriteSnapshot copies all leases to the snapshot, whole and on the disk or not
// at all. Leases that change meanwhile are copied as they were or as they are.
//
// Where nothing was ever stored nothing is written. The last copy may be all that
// is left of a store that was lost: what it says of pools that are not known
// again stays in it, and with it the time that it was taken at.
func (s *Store) WriteSnapshot(ctx context.Context, now lease.Instant) error {
	snap := snapshot{Format: formatNow, Taken: now.Wall}
	before, taken, err := s.ReadSnapshot()
	if errors.Is(err, ErrNewer) || errors.Is(err, ErrIO) {
		return err
	}
	var unknown map[lease.Pool]bool
	var at Mark
	for more := true; more; {
		var batch []lease.Lease
		err := s.View(ctx, func(tx *Tx) error {
			unknown = unknownAgain(tx, before)
			at, more = tx.After(at, snapshotBatch, func(l lease.Lease) { batch = append(batch, l) })
			return nil
		})
		if err != nil {
			return err
		}
		for _, l := range batch {
			if !unknown[l.Pool] {
				snap.add(l)
			}
		}
	}
	for _, l := range before {
		if unknown[l.Pool] {
			snap.Taken = taken
			snap.add(l)
		}
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

func (s *snapshot) add(l lease.Lease) {
	s.Leases = append(s.Leases, record{l.Pool.DataDir, l.Pool.Network, encode(l)})
}

// unknownAgain are the pools of a snapshot that a store which took a lost one's
// place does not know yet.
func unknownAgain(tx *Tx, leases []lease.Lease) map[lease.Pool]bool {
	out := map[lease.Pool]bool{}
	for _, l := range leases {
		if tx.Lost() != "" && !tx.Known(l.Pool) {
			out[l.Pool] = true
		}
	}
	return out
}

// writeWhole replaces a file, so that whoever reads it sees all or nothing of
// it, also after a power cut.
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
	return syncDir(filepath.Dir(path))
}

// ReadSnapshot returns the last snapshot's leases and when it was taken; none
// where there is no snapshot. Damaged records are left out.
func (s *Store) ReadSnapshot() ([]lease.Lease, time.Time, error) {
	b, err := os.ReadFile(s.snapshotPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("%w: snapshot: %w", ErrIO, err)
	}
	var snap snapshot
	if err := json.Unmarshal(b, &snap); err != nil {
		return nil, time.Time{}, fmt.Errorf("%w: snapshot: %w", ErrDamaged, err)
	}
	if snap.Format > formatNow {
		return nil, time.Time{}, fmt.Errorf("%w: the snapshot has format %d, this one knows up to %d", ErrNewer, snap.Format, formatNow)
	}
	var out []lease.Lease
	for _, r := range snap.Leases {
		if l, err := decode(r.Record, lease.Pool{DataDir: r.DataDir, Network: r.Network}); err == nil {
			out = append(out, l)
		}
	}
	return out, snap.Taken, nil
}
