// Package signal wakes those who wait for news, without telling them any: who
// is woken looks at what there is.
package signal

import "sync"

// Signal tells any number of listeners that something has changed, not what or
// how often. Its zero value is ready.
type Signal struct {
	mu        sync.Mutex
	listeners []chan struct{}
}

// Subscribe returns a channel that gets a word after each Send, one for several
// that nobody has taken. It is never closed.
func (s *Signal) Subscribe() <-chan struct{} {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, c)
	return c
}

// Send wakes all listeners. It never waits.
func (s *Signal) Send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.listeners {
		select {
		case c <- struct{}{}:
		default: // a word waits there
		}
	}
}
