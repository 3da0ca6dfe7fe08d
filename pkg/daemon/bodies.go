package daemon

import (
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// LimitBodies returns a handler that calls next, and keeps the bodies of all requests that next
// serves at a time below limit bytes. If they exceed it, the connection with the largest body of
// the address that has sent most is closed, without a response. The listener must not use HTTP/2.
func LimitBodies(next http.Handler, limit int64) http.Handler {
	all := &bodies{limit: limit, open: map[*body]bool{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		b := &body{ReadCloser: r.Body, all: all, host: host, conn: http.NewResponseController(w)}
		r.Body = b
		all.add(b)
		defer all.remove(b)
		next.ServeHTTP(w, r)
	})
}

// bodies are those of the requests that are served now.
type bodies struct {
	limit int64

	mu    sync.Mutex
	total int64
	open  map[*body]bool
}

func (a *bodies) add(b *body) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[b] = true
}

func (a *bodies) remove(b *body) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[b] {
		delete(a.open, b)
		a.total -= b.size
	}
}

// grow counts n more bytes of a body. It reports false if the body's connection has to be closed.
func (a *bodies) grow(b *body, n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.open[b] {
		return false
	}
	b.size += n
	a.total += n
	for a.total > a.limit {
		largest := a.largest()
		delete(a.open, largest)
		a.total -= largest.size
		_ = largest.conn.SetReadDeadline(time.Now()) // ends a Read that waits; without it ReadTimeout does
	}
	return a.open[b]
}

// largest returns the largest body of the address that has sent most.
func (a *bodies) largest() *body {
	sizes := map[string]int64{}
	for b := range a.open {
		sizes[b.host] += b.size
	}
	var largest *body
	for b := range a.open {
		if largest == nil || sizes[b.host] > sizes[largest.host] || b.host == largest.host && b.size > largest.size {
			largest = b
		}
	}
	return largest
}

// body is the body of a request.
type body struct {
	io.ReadCloser
	all  *bodies
	host string
	conn *http.ResponseController
	size int64 // that was read
}

// Read implements io.Reader. It panics with http.ErrAbortHandler if the connection has to be
// closed: after an error the handler could answer, and an API server takes each answer of a webhook
// for a decision about its request.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.all.grow(b, int64(n)) {
		panic(http.ErrAbortHandler)
	}
	return n, err
}
