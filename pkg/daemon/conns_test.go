package daemon

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestConnectionsAreLimited has a client open many connections on which it sends nothing. The
// server closes most of them, the oldest first, and none of another client, which it
// still answers at once.
func TestConnectionsAreLimited(t *testing.T) {
	const limit = 100
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		ConnState: (&connLimiter{limit: limit}).track}
	go server.Serve(listener)
	defer server.Close()
	url := "http://" + listener.Addr().String()
	var others int // connections of the other client
	other := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			others++
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}}}
	get := func() {
		t.Helper()
		r, err := other.Get(url)
		must.Succeed(t, err)
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	get()
	const flood = 2 * limit
	closed := make(chan int, flood)
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for i := range flood {
		c, err := from.Dial("tcp", listener.Addr().String())
		must.Succeed(t, err)
		defer c.Close()
		go func() {
			io.Copy(io.Discard, c)
			closed <- i
		}()
	}
	const surplus = flood + 1 - limit
	for range surplus {
		select {
		case i := <-closed:
			if i >= surplus {
				t.Errorf("connection %d is closed before %d", i, surplus)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the server has not closed %d of %d connections", surplus, flood+1)
		}
	}
	get()
	check.Equal(t, others, 1, "connections of the other client")
}
