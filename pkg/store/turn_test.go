package store

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Overlapping shared locks keep writers waiting, so there is one at a time in a process.
func TestReadersTakeTurns(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	nothing := func(*Tx) error { return nil }
	err := s.View(context.Background(), func(*Tx) error {
		for _, other := range []struct {
			store *Store
			want  error
		}{{s, ErrBusy}, {New(s.Dirs()), nil}} { // like another process
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			if err := other.store.View(ctx, nothing); !errors.Is(err, other.want) {
				t.Errorf("meanwhile: %v, want %v", err, other.want)
			}
			cancel()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := s.View(context.Background(), nothing); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Between two readers there is a rest for a writer, which is as long as the first one held the lock
// within limits. A process that cannot get the lock rests as well.
func TestRestBetweenReaders(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	for _, held := range []time.Duration{0, 3 * time.Millisecond, 3 * mostRest} {
		var released, again time.Time
		read := func(fn func()) {
			t.Helper()
			if err := s.View(t.Context(), func(*Tx) error { fn(); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		read(func() { time.Sleep(held); released = time.Now() })
		read(func() { again = time.Now() })
		if rest := again.Sub(released); rest < min(max(held, leastRest), mostRest) {
			t.Errorf("the lock was held for %v: a rest of %v", held, rest)
		}
	}
	update(t, New(s.Dirs()), func(*Tx) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := s.View(ctx, func(*Tx) error { return nil }); !errors.Is(err, ErrBusy) {
			t.Errorf("a writer has the lock: %v", err)
		}
		return nil
	})
	view(t, s, func(*Tx) {})
}
