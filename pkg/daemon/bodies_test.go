package daemon

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestBodiesAreLimited has a client send requests whose bodies do not end. The server serves only
// some of them, closes the connections of the others without a response, and serves a client of
// another address meanwhile.
func TestBodiesAreLimited(t *testing.T) {
	const limit, size = 1000, 200
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	var served atomic.Int32
	server := New(LimitBodies(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		served.Add(1)
		io.Copy(io.Discard, r.Body)
	}), limit), MaxConns)
	server.ReadTimeout = time.Hour
	go server.Serve(listener)
	defer server.Close()
	const clients = 20
	ended := make(chan string, clients)
	for range clients {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		c, err := from.Dial("tcp", listener.Addr().String())
		must.Succeed(t, err)
		defer c.Close()
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", size)
		go func() {
			response, _ := io.ReadAll(c)
			ended <- string(response)
		}()
	}
	for range clients - limit/2/size {
		select {
		case response := <-ended:
			check.Equal(t, response, "", "the response to a client")
		case <-time.After(time.Minute):
			t.Fatalf("%d requests of %d bytes are served, want %d", served.Load(), size, limit/2/size)
		}
	}
	for body, ok := range map[io.Reader]bool{
		strings.NewReader(strings.Repeat("a", limit/2)):                true,
		strings.NewReader(strings.Repeat("a", limit/2+1)):              false,
		struct{ io.Reader }{strings.NewReader("of an unknown length")}: false,
	} {
		for range 20 {
			r, err := http.Post("http://"+listener.Addr().String(), "", body)
			if (err == nil) != ok {
				t.Fatalf("%v: %v, want that it is served: %t", body, err, ok)
			}
			if err == nil {
				r.Body.Close()
			}
			if seeker, is := body.(io.Seeker); is {
				seeker.Seek(0, io.SeekStart)
			}
		}
	}
	check.Equal(t, served.Load(), limit/2/size+20, "served requests")
}
