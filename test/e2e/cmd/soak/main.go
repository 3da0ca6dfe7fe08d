// Command soak judges the samples of `make soak`. It fails if a series grows without bound.
//
//	soak <samples.csv>
package main

import (
	"fmt"
	"os"

	"github.com/leasehold-cni/leasehold/test/e2e/soak"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: soak <samples.csv>")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(samples string) error {
	file, err := os.Open(samples)
	if err != nil {
		return err
	}
	defer file.Close()
	series, err := soak.Read(file)
	if err != nil {
		return fmt.Errorf("%s: %w", samples, err)
	}
	verdicts, err := soak.Judge(series, soak.Rules)
	if err != nil {
		return err
	}
	if err := soak.Table(os.Stdout, verdicts); err != nil {
		return err
	}
	grows := 0
	for _, v := range verdicts {
		if !v.OK && !v.Open {
			grows++
		}
	}
	if grows > 0 {
		return fmt.Errorf("%d series grow without bound", grows)
	}
	return nil
}
