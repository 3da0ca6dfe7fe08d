package store

import "errors"

var (
	// ErrBusy is returned when the lock could not be had in time.
	ErrBusy = errors.New("the lease store is busy")
	// ErrLost is returned when the store is missing, empty or damaged although
	// it was in use: what it knew has to be learnt again from the host.
	ErrLost = errors.New("the lease store is lost")
	// ErrNewer is returned when a newer version has written the store.
	ErrNewer = errors.New("the lease store was written by a newer version")
	// ErrIO is returned when the disk refuses to read or to write.
	ErrIO = errors.New("the lease store cannot be read or written")
	// ErrDamaged is returned for one record that fails its checksum. Others are
	// not touched by it.
	ErrDamaged = errors.New("the record of a lease is damaged")
)
