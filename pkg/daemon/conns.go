package daemon

import (
	"net"
	"slices"
	"sync"
)

// Listen listens at a TCP address. There are at most limit open connections: for each further one
// the listener closes the oldest of the address that has most. So clients that open many
// connections use little memory, and do not keep others from being served.
func Listen(addr string, limit int) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &connLimiter{Listener: l, limit: limit}, nil
}

type connLimiter struct {
	net.Listener
	limit int

	mu   sync.Mutex
	open []*conn // the oldest first
}

// Accept implements net.Listener.
func (l *connLimiter) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted, limiter: l}
	l.mu.Lock()
	l.open = append(l.open, c)
	var surplus *conn
	if len(l.open) > l.limit {
		surplus = l.surplus()
	}
	l.mu.Unlock()
	if surplus != nil {
		surplus.Close()
	}
	return c, nil
}

// surplus returns the oldest connection of the address that has most.
func (l *connLimiter) surplus() *conn {
	count, most := map[string]int{}, 0
	for _, c := range l.open {
		count[c.host()]++
		most = max(most, count[c.host()])
	}
	i := slices.IndexFunc(l.open, func(c *conn) bool { return count[c.host()] == most })
	return l.open[i]
}

// conn is a connection that a limiter counts until it is closed.
type conn struct {
	net.Conn
	limiter *connLimiter
}

func (c *conn) host() string {
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	return host
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.limiter.mu.Lock()
	c.limiter.open = slices.DeleteFunc(c.limiter.open, func(o *conn) bool { return o == c })
	c.limiter.mu.Unlock()
	return c.Conn.Close()
}
