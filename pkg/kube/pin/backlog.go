package pin

import (
	"sync"
	"time"
)

const (
	// gateLife is for how long a gate may hold a pod back (NAMES, Defaults).
	gateLife = 2 * time.Second
	// gateBudget is how much of that may be spent in the queue; the rest is for what nobody foresees.
	gateBudget = gateLife / 2
	// ownLife is how long a replica remembers that a gate is its own.
	ownLife = 10 * time.Second
	// workers lift gates side by side.
	workers = 16
)

// A backlog tells how long a new gate would wait for its turn, so that no gate is made that could not be lifted in time.
type backlog struct {
	mu      sync.Mutex
	own     map[string]time.Time // gates of pods that this replica admitted, by "namespace/name", and when
	unseen  map[string]time.Time // those of them that no informer has shown yet
	pace    time.Duration        // what one pod takes one worker, a running mean
	stalled time.Time            // until when no gate is made, because the last one could not be lifted
}

func newBacklog() *backlog {
	return &backlog{own: map[string]time.Time{}, unseen: map[string]time.Time{}, pace: 20 * time.Millisecond}
}

// Room tells whether another gate would be lifted in time, if so many are open now: its turn has to come, and then it takes
// as long as any.
func (b *backlog) Room(open int, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, at := range b.unseen {
		if now.Sub(at) > gateLife {
			delete(b.unseen, key) // the pod was not made after all
		}
	}
	wait := b.pace + time.Duration(open+len(b.unseen))*b.pace/workers
	return wait <= gateBudget && !now.Before(b.stalled)
}

// Made says that a pod was admitted with a gate.
func (b *backlog) Made(key string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own[key], b.unseen[key] = now, now
	if len(b.own)%1024 == 0 {
		for key, at := range b.own {
			if now.Sub(at) > ownLife {
				delete(b.own, key)
			}
		}
	}
}

// Seen says that a pod with a gate is there, and tells whether this replica admitted it.
func (b *backlog) Seen(key string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.unseen, key)
	at, found := b.own[key]
	return found && now.Sub(at) <= ownLife
}

// Lifted says what it took to lift a gate.
func (b *backlog) Lifted(took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pace += (took - b.pace) / 8
}

// Failed says that a gate could not be lifted, and likely no other could be.
func (b *backlog) Failed(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stalled = now.Add(gateLife)
}
