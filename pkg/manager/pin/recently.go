package pin

import (
	"sync"
	"time"
)

// recently remembers for a while what has been said or done.
type recently struct {
	life time.Duration

	mu   sync.Mutex
	when map[string]time.Time
}

func newRecently(life time.Duration) *recently {
	return &recently{life: life, when: map[string]time.Time{}}
}

// first reports whether a thing was not named within the life, and remembers it.
func (r *recently) first(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, at := range r.when {
		if now.Sub(at) > r.life {
			delete(r.when, k)
		}
	}
	_, found := r.when[key]
	r.when[key] = now
	return !found
}
