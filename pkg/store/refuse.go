package store

import (
	"context"
	"fmt"
)

type refuseKey struct{}

// RefuseWrites returns a context in whose transactions each write calls refuse first, and fails
// with ErrIO if that returns an error. It is for tests of calls that fail halfway: bbolt keeps
// writes in memory until the commit, so that no failing disk has this effect.
func RefuseWrites(ctx context.Context, refuse func() error) context.Context {
	return context.WithValue(ctx, refuseKey{}, refuse)
}

// refuses returns the error with which a write fails, nil if it does not.
func (tx *Tx) refuses() error {
	if tx.refuse == nil {
		return nil
	}
	if err := tx.refuse(); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}
