package daemon

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// LimitBodies returns a handler that calls next, and keeps the bodies of all requests that next
// serves at a time within limit bytes, and those from one address within half of that. The
// connection of a request that would exceed this, or does not say its length, is closed without a
// response, because an API server takes each answer of a webhook for a decision about its request.
func LimitBodies(next http.Handler, limit int64) http.Handler {
	b := &bodies{limit: limit, from: map[string]int64{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		if r.ContentLength < 0 || !b.add(host, r.ContentLength) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // the rest is not waited for
			panic(http.ErrAbortHandler)
		}
		defer b.add(host, -r.ContentLength)
		next.ServeHTTP(w, r)
	})
}

// bodies has the bytes in the bodies of the requests that are served now.
type bodies struct {
	limit int64

	mu    sync.Mutex
	total int64
	from  map[string]int64 // by address
}

// add adds the bytes of a body, or takes them away if n is negative. It reports false and adds
// nothing if they would exceed a limit.
func (b *bodies) add(host string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && (b.total+n > b.limit || b.from[host]+n > b.limit/2) {
		return false
	}
	b.total += n
	b.from[host] += n
	if b.from[host] == 0 {
		delete(b.from, host)
	}
	return true
}
