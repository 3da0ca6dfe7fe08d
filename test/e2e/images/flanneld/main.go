// Flanneld stands for flannel's daemon, whose work the test cluster has done: each machine has the
// routes, and /run/flannel/subnet.env. It only answers the probes of kube-flannel's manifest.
package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	for _, path := range []string{"/healthz", "/readyz"} {
		http.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	}
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":8081", nil))
	os.Exit(1)
}
