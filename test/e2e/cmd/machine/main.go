// Machine is pid 1 of a machine of the test cluster. See package machine.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"syscall"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

func main() {
	var c machine.Config
	err := json.Unmarshal([]byte(os.Args[1]), &c)
	switch {
	case err != nil:
	case len(os.Args) == 2:
		if err = machine.IsolateCgroups(c); err == nil {
			err = syscall.Exec("/proc/self/exe", append(os.Args, "isolated"), os.Environ())
		}
	default:
		err = machine.Main(c)
	}
	fmt.Fprintf(os.Stderr, "machine: %v\n", err)
	os.Exit(1)
}
