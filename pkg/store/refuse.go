package store

import (
	"context"
	"fmt"
)

type refuseKey struct{}

// RefuseWrites returns a context for tests of calls that fail halfway. In its transactions each
// write calls refuse first, and fails with ErrIO if refuse returns an error. A failing disk cannot
// test this, because bbolt keeps writes in memory until the commit.
func RefuseWrites(ctx context.Context, refuse func() error) context.Context {
	return context.WithValue(ctx, refuseKey{}, refuse)
}

// refuses returns the error of RefuseWrites for the next write, or nil.
func (tx *Tx) refuses() error {
	if tx.refuse == nil {
		return nil
	}
	if err := tx.refuse(); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}
