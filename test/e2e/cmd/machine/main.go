// Machine is pid 1 of a machine of the bed; see package machine.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

func main() {
	var c machine.Config
	err := json.Unmarshal([]byte(os.Args[1]), &c)
	if err == nil {
		err = machine.Main(c)
	}
	fmt.Fprintf(os.Stderr, "machine: %v\n", err)
	os.Exit(1)
}
