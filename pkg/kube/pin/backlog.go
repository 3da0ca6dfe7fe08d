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
	// firstPace is what a gate is expected to take before any was measured.
	firstPace = 20 * time.Millisecond
	// paceHalf is after how long without a measurement a pace above that is believed half: where no gates are made
	// because it is too high, nothing measures that it has fallen.
	paceHalf = 10 * time.Second
)

// A backlog tells how long a new gate would wait for its turn, so that no gate is made that could not be lifted in time.
type backlog struct {
	mu       sync.Mutex
	own      map[string]time.Time // gates of pods that this replica admitted, by "namespace/name", and when
	unseen   map[string]time.Time // those of them that no informer has shown yet
	pace     time.Duration        // what one pod takes one worker, a running mean, when it was measured
	measured time.Time
	stalled  time.Time // until when no gate is made, because the last one could not be lifted
}

func newBacklog() *backlog {
	return &backlog{own: map[string]time.Time{}, unseen: map[string]time.Time{}, pace: firstPace}
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
	pace := b.expected(now)
	wait := pace + time.Duration(open+len(b.unseen))*pace/workers
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

// Lifted says what it took to lift a gate that was lifted in time.
func (b *backlog) Lifted(took time.Duration, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pace = b.expected(now)
	b.pace += (took - b.pace) / 8
	b.measured = now
}

// expected is the pace that is to be reckoned with now.
func (b *backlog) expected(now time.Time) time.Duration {
	if b.pace <= firstPace {
		return b.pace
	}
	return max(firstPace, b.pace>>max(0, now.Sub(b.measured)/paceHalf))
}

// Failed says that a gate could not be lifted in time, and likely no other could be.
func (b *backlog) Failed(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stalled = now.Add(gateLife)
}
