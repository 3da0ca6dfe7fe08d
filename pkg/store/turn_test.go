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

// Shared locks that overlap keep writers out. Within a process there is one at a time.
func TestReadersTakeTurns(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	nothing := func(*Tx) error { return nil }
	err := s.View(context.Background(), func(*Tx) error {
		for _, other := range []struct {
			store *Store
			want  error
		}{{s, ErrBusy}, {New(s.Dirs()), nil}} { // another process is not in our way
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

// locks counts what a turn takes and gives back.
type locks struct{ taken, given int }

func (l *locks) acquire() (io.Closer, error) { l.taken++; return l, nil }
func (l *locks) Close() error                { l.given++; return nil }

// Between two periods a writer has the time to wake up.
func TestAPeriodIsFollowedByARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reading, ctx, lock := newTurn(), context.Background(), &locks{}
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
			if time.Since(gave) != want || lock.taken != lock.given+1 {
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
			t.Errorf("no time to rest: %v", err)
		}
		if _, err := reading.take(ctx, func() (io.Closer, error) { return nil, ErrIO }); !errors.Is(err, ErrIO) {
			t.Errorf("no lock: %v", err)
		}
		reading.give(take(ctx)) // the turn is not lost
		if lock.taken != lock.given {
			t.Errorf("%+v", *lock)
		}
	})
}

// The lock may take long to get: who waits meanwhile need not wait for another.
func TestWhoWaitsForTheTurnGoesOnUnderTheSameLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const readers, long = 30, longestPeriod / 10
		reading, lock, busy := newTurn(), &locks{}, 0
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
				if busy++; busy > 1 || lock.taken != lock.given+1 {
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
			t.Errorf("who does not wait any longer: %v", err)
		}
		first.began = time.Now() // the lock is granted
		reading.give(first)
		wait.Wait()
		if lock.taken != readers/10 || lock.given != lock.taken {
			t.Errorf("%d readers took the lock so often: %+v", readers, *lock)
		}
	})
}
