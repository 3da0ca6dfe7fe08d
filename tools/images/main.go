// Images builds container images without a container engine, as archives for `docker load`, `ctr
// images import` and skopeo. An image has static Go programs in the root of an empty file system.
//
//	images [-repo DIR] [-o DIR] [-tag TAG] [-version VERSION] [-list] [REFERENCE=PACKAGE[,PACKAGE]...]
//
// A PACKAGE is a directory below the repository; the first one is the entrypoint. Without
// arguments, the images are leasehold's own, with the tag. GOARCH selects the architecture. It
// prints the path of each archive, or with -list only the references.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// own are the images of the manifests in daemonset/, without their tags.
var own = []string{
	"leasehold/installer=daemonset/installer,plugins/ipam/leasehold",
	"leasehold/agent=cmd/leasehold-agent",
	"leasehold/manager=cmd/leasehold-manager",
}

var (
	repo    = flag.String("repo", ".", "root of the repository")
	out     = flag.String("o", "bin/images", "directory of the archives, relative to the repository")
	tag     = flag.String("tag", "latest", "tag of leasehold's own images")
	version = flag.String("version", "devel", "version of the programs")
	list    = flag.Bool("list", false, "print the references of the images and build nothing")
)

func main() {
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		for _, image := range own {
			name, packages, _ := strings.Cut(image, "=")
			args = append(args, name+":"+*tag+"="+packages)
		}
	}
	dir := *out
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(*repo, dir)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, arg := range args {
		ref, packages, ok := strings.Cut(arg, "=")
		name, _, tagged := strings.Cut(path.Base(ref), ":")
		if !ok || !tagged || packages == "" {
			return fmt.Errorf("%s: want REFERENCE:TAG=PACKAGE[,PACKAGE]", arg)
		}
		if *list {
			fmt.Println(ref)
			continue
		}
		archive := filepath.Join(dir, name+".tar")
		if err := build(ctx, archive, ref, strings.Split(packages, ",")); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		fmt.Println(archive)
	}
	return nil
}

// build builds the programs of an image beside its archive, where the next build finds them, and
// writes the archive.
func build(ctx context.Context, archive, ref string, packages []string) error {
	var programs []string
	for _, p := range packages {
		program := filepath.Join(filepath.Dir(archive), "programs", goarch(), path.Base(p))
		// From its own directory, because it may be in another module.
		cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(*repo, p), "build", "-trimpath", "-buildvcs=false",
			"-ldflags", "-s -w -X main.version="+*version, "-o", program, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOWORK=off")
		if text, err := cmd.CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(string(text)))
		}
		programs = append(programs, program)
	}
	return writeArchive(archive, ref, goarch(), programs)
}

func goarch() string {
	if arch := os.Getenv("GOARCH"); arch != "" {
		return arch
	}
	return runtime.GOARCH
}
