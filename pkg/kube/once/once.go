// Package once remembers what was reported, so that it is not reported again.
package once

import (
	"sync"
	"time"
)

// maxKeys limits the size of a Set. A full one is emptied, so that something may be reported again.
const maxKeys = 10_000

// Set is a set of keys of what was reported. The zero value is an empty set whose keys stay. It is
// safe for concurrent use.
type Set struct {
	// Life is how long a key stays after First was last called with it. 0 means that it stays until
	// the set is full.
	Life time.Duration

	mu   sync.Mutex
	seen map[string]time.Time
}

// First adds the key, and reports whether it was not in the set.
func (s *Set) First(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Life > 0 {
		for k, at := range s.seen {
			if now.Sub(at) > s.Life {
				delete(s.seen, k)
			}
		}
	}
	_, found := s.seen[key]
	if s.seen == nil || !found && len(s.seen) >= maxKeys {
		s.seen = map[string]time.Time{}
	}
	s.seen[key] = now
	return !found
}
