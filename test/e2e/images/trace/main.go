// Trace replaces a CNI plugin: it logs the call, and executes the plugin, which is NAME.real in the
// same directory.
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
		err = logCall()
	}
	if err == nil {
		err = syscall.Exec(self+".real", os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "trace:", err)
	os.Exit(1)
}

// logCall appends a line with one write, so that concurrent calls do not mix.
func logCall() error {
	f, err := os.OpenFile("/var/log/cni-trace.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s %s %s %s\n", time.Now().UTC().Format(time.RFC3339Nano),
		os.Getenv("CNI_COMMAND"), os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_NETNS"))
	return err
}
