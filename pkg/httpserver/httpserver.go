// Package httpserver has what the HTTP servers of agent and manager share: no client can use a
// connection, memory, time or log of theirs without limit.
package httpserver

import (
	"io"
	"log"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	// MaxConns is the maximum number of open connections of servers whose clients are a few probes
	// and scrapes.
	MaxConns = 256
	// logInterval is the least time between two log lines about connections.
	logInterval = time.Minute
)

// New returns an HTTP server. A client has ten seconds to send a request. A connection without a
// request ends after two minutes: clients of the Kubernetes libraries keep theirs for 90 seconds,
// and a request that meets the end of its connection fails. At most once a minute the server logs
// an error of a connection, such as a TLS handshake that has failed, to standard error.
func New(handler http.Handler) *http.Server {
	return &http.Server{Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(&rareLines{out: os.Stderr}, "", log.LstdFlags)}
}

// rareLines writes at most one line in logInterval, and drops the others.
type rareLines struct {
	out io.Writer

	mu sync.Mutex
	at time.Time // of the last line
}

// Write implements io.Writer.
func (w *rareLines) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); now.Sub(w.at) >= logInterval {
		w.at = now
		return w.out.Write(line)
	}
	return len(line), nil
}
