// Command soak judges the samples of `make soak` and draws them. It fails if a series grows without
// bound.
//
//	soak <samples.csv> <directory for the pictures>
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/leasehold-cni/leasehold/test/e2e/soak"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: soak <samples.csv> <directory>")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(samples, dir string) error {
	file, err := os.Open(samples)
	if err != nil {
		return err
	}
	defer file.Close()
	series, err := soak.Read(file)
	if err != nil {
		return fmt.Errorf("%s: %w", samples, err)
	}
	for _, p := range soak.Pictures {
		if err := p.Draw(filepath.Join(dir, p.File), series); err != nil {
			return err
		}
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
