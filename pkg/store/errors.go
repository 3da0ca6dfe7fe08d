package store

import "errors"

var (
	// ErrBusy is returned if the lock was not acquired in time.
	ErrBusy = errors.New("the lease store is busy")
	// ErrLost is returned if a store that was in use is missing, empty or damaged: its leases have
	// to be recovered from the host.
	ErrLost = errors.New("the lease store is lost")
	// ErrNewer is returned if a newer version has written the store.
	ErrNewer = errors.New("the lease store was written by a newer version")
	// ErrIO is returned if a file cannot be read or written.
	ErrIO = errors.New("the lease store cannot be read or written")
	// ErrDamaged is returned for one record whose checksum or content is invalid. Other records are
	// not affected.
	ErrDamaged = errors.New("the record of a lease is damaged")
)
