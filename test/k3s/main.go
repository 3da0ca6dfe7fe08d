// k3s is a stand-in for the program cni of k3s: all plugins in one program, which acts by the name
// that it is called with (docs/facts.md, "k3s replaces the links to its plugins when it is
// upgraded"). It runs the plugin of that name in the directory plugins beside it. With another name
// it prints a version, and succeeds.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

func main() {
	self, err := os.Executable()
	if err == nil {
		plugin := filepath.Join(filepath.Dir(self), "plugins", filepath.Base(os.Args[0]))
		if _, missing := os.Stat(plugin); missing != nil {
			fmt.Println("CNI plugins v1.9.1-k3s1")
			return
		}
		err = syscall.Exec(plugin, os.Args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
