// Cp is the part of cp(1) that kube-flannel's manifest uses.
//
//	cp -f FROM TO
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 4 || os.Args[1] != "-f" {
		fmt.Fprintln(os.Stderr, "usage: cp -f FROM TO")
		os.Exit(2)
	}
	if err := copyFile(os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "cp:", err)
		os.Exit(1)
	}
}

// copyFile copies a program. One that runs cannot be written to, and is removed first.
func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if os.WriteFile(to, content, 0o755) == nil {
		return nil
	}
	if err := os.Remove(to); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755)
}
