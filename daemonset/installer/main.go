// Installer installs the CNI plugin on a node, with `installer install` in an init container of the
// DaemonSet. `installer idle` keeps a pod running.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "installer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no command; want install or idle")
	}
	switch args[0] {
	case "install":
		flags := flag.NewFlagSet("install", flag.ContinueOnError)
		from := flags.String("from", "/leasehold", "`path` of the plugin")
		to := flags.String("to", "/host/opt/cni/bin", "`directory` of the node's plugins")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return install(*from, *to)
	case "idle":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
		<-c
		return nil
	default:
		return fmt.Errorf("unknown command %q; want install or idle", args[0])
	}
}
