package store

import (
	"context"
	"fmt"
)

type refuseKey struct{}

// RefuseWrites makes each write inside the transactions under the context ask refuse first, and
// fail with ErrIO where that returns an error. It is for tests of what a call leaves behind that
// fails halfway: bbolt keeps what is written in memory until the commit, so no disk fails there.
func RefuseWrites(ctx context.Context, refuse func() error) context.Context {
	return context.WithValue(ctx, refuseKey{}, refuse)
}

// refuses returns why a write is not to be made.
func (tx *Tx) refuses() error {
	if tx.refuse == nil {
		return nil
	}
	if err := tx.refuse(); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}
