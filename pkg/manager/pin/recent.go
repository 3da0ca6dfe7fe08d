package pin

import (
	"sync"
	"time"
)

// recentKeys remembers keys for a time.
type recentKeys struct {
	window time.Duration

	mu   sync.Mutex
	when map[string]time.Time
}

func newRecentKeys(window time.Duration) *recentKeys {
	return &recentKeys{window: window, when: map[string]time.Time{}}
}

// first reports whether a key was not seen within the window, and remembers it.
func (r *recentKeys) first(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, at := range r.when {
		if now.Sub(at) > r.window {
			delete(r.when, k)
		}
	}
	_, found := r.when[key]
	r.when[key] = now
	return !found
}
