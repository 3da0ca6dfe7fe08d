// Echo responds to every HTTP request with the pod's name and addresses, and to every UDP datagram
// with a text that is another one in each container. If STUBBORN is set it ignores SIGTERM, like a
// process that a user deletes with --force.
package main

import (
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	go func() {
		for range c {
			if os.Getenv("STUBBORN") == "" {
				os.Exit(0)
			}
		}
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		name, _ := os.Hostname()
		addrs, _ := net.InterfaceAddrs()
		fmt.Fprintln(w, name, addrs, r.Method, r.URL)
	})
	go func() { fail(replyToDatagrams()) }()
	fail(http.ListenAndServe(":8080", nil))
}

func replyToDatagrams() error {
	conn, err := net.ListenPacket("udp", ":8080")
	if err != nil {
		return err
	}
	reply := []byte(rand.Text())
	for {
		_, from, err := conn.ReadFrom(make([]byte, 1))
		if err != nil {
			return err
		}
		conn.WriteTo(reply, from) // the sender repeats a datagram whose reply is lost
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "echo:", err)
	os.Exit(1)
}
