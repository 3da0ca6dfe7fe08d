package store

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
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

// locks counts the acquired and released locks.
type locks struct{ acquired, released int }

func (l *locks) acquire() (io.Closer, error) { l.acquired++; return l, nil }
func (l *locks) Close() error                { l.released++; return nil }

// The pause between two periods is long enough for a writer to wake up.
func TestPauseAfterAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reading, ctx, lock := newReadGate(), context.Background(), &locks{}
		take := func(ctx context.Context) *period {
			t.Helper()
			p, err := reading.take(ctx, lock.acquire)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		after := func(held, want time.Duration) {
			t.Helper()
			p := take(ctx)
			time.Sleep(held)
			reading.give(p)
			gave := time.Now()
			p = take(ctx)
			if time.Since(gave) != want || lock.acquired != lock.released+1 {
				t.Errorf("after %v: %v, want %v; %+v", held, time.Since(gave), want, *lock)
			}
			reading.give(p)
		}
		after(0, leastRest)
		after(5*time.Millisecond, 5*time.Millisecond)
		after(time.Hour, mostRest)
		p := take(ctx)
		time.Sleep(time.Hour)
		reading.give(p)
		short, cancel := context.WithTimeout(ctx, mostRest/2)
		defer cancel()
		if _, err := reading.take(short, lock.acquire); !errors.Is(err, ErrBusy) {
			t.Errorf("deadline within the pause: %v", err)
		}
		if _, err := reading.take(ctx, func() (io.Closer, error) { return nil, ErrIO }); !errors.Is(err, ErrIO) {
			t.Errorf("no lock: %v", err)
		}
		reading.give(take(ctx)) // the turn is free again
		if lock.acquired != lock.released {
			t.Errorf("%+v", *lock)
		}
	})
}

// Readers that wait while the lock is acquired share it.
func TestWaitingReadersShareTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers, long = 30, longestPeriod / 10
		reading, lock, busy := newReadGate(), &locks{}, 0
		first, err := reading.take(t.Context(), lock.acquire)
		if err != nil {
			t.Fatal(err)
		}
		var wait sync.WaitGroup
		for range readers {
			wait.Go(func() {
				p, err := reading.take(t.Context(), lock.acquire)
				if err != nil {
					t.Error(err)
					return
				}
				if busy++; busy > 1 || lock.acquired != lock.released+1 {
					t.Errorf("%d at the same time, %+v", busy, *lock)
				}
				time.Sleep(long)
				busy--
				reading.give(p)
			})
		}
		gone, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		if _, err := reading.take(gone, lock.acquire); !errors.Is(err, ErrBusy) {
			t.Errorf("cancelled reader: %v", err)
		}
		first.began = time.Now() // the lock is acquired
		reading.give(first)
		wait.Wait()
		if lock.acquired != readers/10 || lock.released != lock.acquired {
			t.Errorf("%d readers: %+v", readers, *lock)
		}
	})
}
