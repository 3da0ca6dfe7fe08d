package daemon

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestBodiesAreLimited has clients of several addresses send bodies that do not end. The server
// never has more than the limit of them, closes the connections of those clients without a
// response, and serves another client meanwhile.
func TestBodiesAreLimited(t *testing.T) {
	const (
		limit = 1 << 20
		part  = 300 << 10 // that each of the clients sends
	)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var answered atomic.Int32
	h := LimitBodies(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		read, err := io.ReadAll(r.Body)
		if err != nil {
			answered.Add(1)
		}
		fmt.Fprint(w, len(read))
	}), limit)
	server := New(h)
	server.ReadTimeout = time.Hour
	go server.Serve(listener)
	defer server.Close()
	addr := listener.Addr().String()
	const clients = 12
	ended := make(chan string, clients)
	for i := range clients {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%3))}}
		c, err := from.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", 2*part)
		go func() {
			c.Write(make([]byte, part))
			response, _ := io.ReadAll(c)
			ended <- string(response)
		}()
	}
	for range clients - limit/part {
		select {
		case response := <-ended:
			if response != "" {
				t.Errorf("a client got the response %q", response)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the server has more than %d bytes", limit)
		}
	}
	for range 20 {
		client := &http.Client{Timeout: time.Minute}
		r, err := client.Post("http://"+addr, "", bytes.NewReader(make([]byte, part/2)))
		if err != nil {
			t.Fatalf("another client: %v", err)
		}
		size, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if string(size) != fmt.Sprint(part/2) {
			t.Errorf("another client: %s bytes were read", size)
		}
	}
	if n := len(ended); n > 1 {
		t.Errorf("%d connections too many are closed", n)
	}
	if n := answered.Load(); n != 0 {
		t.Errorf("%d handlers went on with a part of a body", n)
	}
}

// TestOneLargeBody sends a body that alone exceeds the limit, and then many that do not.
func TestOneLargeBody(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := New(LimitBodies(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
	}), 1000))
	go server.Serve(listener)
	defer server.Close()
	post := func(size int) error {
		r, err := http.Post("http://"+listener.Addr().String(), "", strings.NewReader(strings.Repeat("a", size)))
		if err == nil {
			r.Body.Close()
		}
		return err
	}
	if err := post(1001); err == nil {
		t.Error("1001 bytes are read")
	}
	for range 100 {
		if err := post(1000); err != nil {
			t.Fatal(err)
		}
	}
}
