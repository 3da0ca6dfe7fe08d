// Package once remembers what was reported, so that the same thing is not reported again.
package once

import (
	"sync"
	"time"
)

// maxKeys is the largest number of keys in a Set. A full set is emptied before the next key is
// added, so that a report may be repeated.
const maxKeys = 10_000

// Set is a set of the keys of things that were reported. The zero value is an empty set in which
// keys do not expire. A Set is safe for concurrent use.
type Set struct {
	// Life is how long a key stays in the set after the last call of First with that key. 0 means
	// that keys do not expire.
	Life time.Duration

	mu   sync.Mutex
	seen map[string]time.Time
}

// First adds the key to the set, and reports whether the key was not in the set before. If the key
// was in the set, its Life begins again at now.
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
