package daemon

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// connLimiter limits the open connections of a server: for each further one it closes the oldest of
// the address that has most. So clients that open many connections use little memory, and do not
// keep others from being served.
type connLimiter struct {
	limit int

	mu   sync.Mutex
	open []net.Conn // the oldest first
}

// track is called for each new state of a connection (http.Server.ConnState).
func (l *connLimiter) track(c net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch state {
	case http.StateNew:
		l.open = append(l.open, c)
		if len(l.open) > l.limit {
			i := l.surplus()
			go l.open[i].Close() // TLS sends an alert before, for which others must not wait
			l.open = slices.Delete(l.open, i, i+1)
		}
	case http.StateClosed, http.StateHijacked:
		l.open = slices.DeleteFunc(l.open, func(o net.Conn) bool { return o == c })
	}
}

// surplus returns the index of the oldest connection of the address that has most.
func (l *connLimiter) surplus() int {
	host := func(c net.Conn) string {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		return host
	}
	count, most := map[string]int{}, 0
	for _, c := range l.open {
		count[host(c)]++
		most = max(most, count[host(c)])
	}
	return slices.IndexFunc(l.open, func(c net.Conn) bool { return count[host(c)] == most })
}
