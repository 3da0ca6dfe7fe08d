// Echo responds to every HTTP request with the pod's name and addresses. If STUBBORN is set it
// ignores SIGTERM, like a process that a user deletes with --force.
package main

import (
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
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8080", nil))
	os.Exit(1)
}
