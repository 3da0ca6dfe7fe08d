package store

import (
	"context"
	"errors"
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

// Between two readers a writer has the time to wake up.
func TestATurnIsPassedOnAfterARest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reading, ctx := newTurn(), context.Background()
		after := func(held, want time.Duration) {
			t.Helper()
			reading.give(held)
			gave := time.Now()
			if err := reading.take(ctx); err != nil || time.Since(gave) != want {
				t.Errorf("after %v: %v, %v; want %v", held, err, time.Since(gave), want)
			}
		}
		if err := reading.take(ctx); err != nil {
			t.Fatal(err)
		}
		after(0, leastRest)
		after(5*time.Millisecond, 5*time.Millisecond)
		after(time.Hour, mostRest)
		reading.give(time.Hour)
		short, cancel := context.WithTimeout(ctx, mostRest/2)
		defer cancel()
		if err := reading.take(short); !errors.Is(err, ErrBusy) {
			t.Errorf("no time to rest: %v", err)
		}
		if err := reading.take(ctx); err != nil {
			t.Errorf("the turn is lost: %v", err)
		}
	})
}
