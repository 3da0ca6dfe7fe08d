package kube

import (
	"hash/maphash"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// life is how long a key stays in the set after the last call of First with that key.
	life = time.Hour
	// maxKeys is the largest number of keys in the set. Beyond that, the one that First was called
	// with least recently leaves it, so that a report may be repeated.
	maxKeys = 5000
)

// Reported is a set of the keys of things that were reported. It keeps a hash of each key: keys may
// have text that users write. The zero value is an empty set. A Reported is safe for concurrent
// use.
type Reported struct {
	once   sync.Once
	seed   maphash.Seed
	hashes *cache.LRUExpireCache
}

// First adds the key to the set, and reports whether the key was not in the set before. If the key
// was in the set, its life begins again.
func (s *Reported) First(key string) bool {
	s.once.Do(func() { s.seed, s.hashes = maphash.MakeSeed(), cache.NewLRUExpireCache(maxKeys) })
	hash := maphash.String(s.seed, key)
	_, found := s.hashes.Get(hash)
	s.hashes.Add(hash, nil, life)
	return !found
}
