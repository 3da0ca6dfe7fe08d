// Trace stands in for a CNI plugin: it notes the call and becomes the plugin, which lies beside it as NAME.real.
package main

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

func main() {
	self, err := os.Executable()
	if err == nil {
		err = note()
	}
	if err == nil {
		err = syscall.Exec(self+".real", os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "trace:", err)
	os.Exit(1)
}

// note appends one line in one write, so that calls at the same time do not mix.
func note() error {
	f, err := os.OpenFile("/var/log/cni-trace.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s %s %s %s\n", time.Now().UTC().Format(time.RFC3339Nano),
		os.Getenv("CNI_COMMAND"), os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_NETNS"))
	return err
}
