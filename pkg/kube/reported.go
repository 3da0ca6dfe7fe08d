package kube

import (
	"hash/maphash"
	"sync"
	"time"
)

const (
	// life is how long a key stays in the set after the last call of First with that key, at
	// least. It stays for less than twice as long, as the Events about it do.
	life = time.Hour
	// maxKeys is the number of new keys after which those of the time before leave it, so
	// that a report may be repeated. A Reported has at most twice as many.
	maxKeys = 5000
)

// Reported is a set of the keys of things that were reported. It keeps a hash of each key: keys may
// have text that users write. The zero value is an empty set. A Reported is safe for concurrent
// use.
type Reported struct {
	mu           sync.Mutex
	seed         maphash.Seed
	began        time.Time // of the keys in recent
	recent, last map[uint64]struct{}
}

// First adds the key to the set, and reports whether the key was not in the set before. If the key
// was in the set, its life begins again at now.
func (s *Reported) First(key string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recent == nil {
		s.seed, s.began, s.recent = maphash.MakeSeed(), now, map[uint64]struct{}{}
	}
	if age := now.Sub(s.began); age >= life || len(s.recent) >= maxKeys {
		s.last, s.recent, s.began = s.recent, map[uint64]struct{}{}, now
		if age >= 2*life {
			s.last = nil
		}
	}
	hash := maphash.String(s.seed, key)
	_, isRecent := s.recent[hash]
	_, isLast := s.last[hash]
	s.recent[hash] = struct{}{}
	return !isRecent && !isLast
}
