// Package image builds static Go programs and container images of them, without a container
// engine. The same source, version and toolchain give the same bytes, in any directory.
package image

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// Program is a Go program for Linux.
type Program struct {
	Repo    string // directory of the repository
	Package string // directory of the program, relative to the repository
	Arch    string // a GOARCH
	Version string // what the program prints as its version
}

// Build builds the program and writes it to a file.
func (p Program) Build(ctx context.Context, to string) error {
	// From its own directory, because it may be in another module.
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(p.Repo, p.Package), "build", "-trimpath",
		"-buildvcs=false", "-ldflags", "-s -w -X main.version="+p.Version, "-o", to, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+p.Arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOWORK=off", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(text)))
	}
	return nil
}
