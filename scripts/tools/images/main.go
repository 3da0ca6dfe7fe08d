// Images builds container images without a container engine, as archives for `docker load`, `ctr
// images import` and skopeo. An image has static Go programs in an empty file system.
//
//	images [-repo DIR] [-o DIR] [-tag TAG] [-version VERSION] [-list] [REFERENCE=PACKAGE[@PATH][,...]...]
//
// A PACKAGE is a directory below the repository, or the absolute path of a program that is built
// already. PATH is where it is in the image, by default in the root under its own name. The first
// one is the entrypoint. Without arguments, the images are leasehold's own, with the tag. GOARCH
// selects the architecture. It prints the path of each archive, or with -list only the references.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/leasehold-cni/leasehold/scripts/tools/image"
)

var (
	repo    = flag.String("repo", ".", "root of the repository")
	out     = flag.String("o", "bin/images", "directory of the archives, relative to the repository")
	tag     = flag.String("tag", "devel", "tag of leasehold's own images")
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
	users := map[string]string{} // of leasehold's own images; the others have root
	if len(args) == 0 {
		for _, o := range image.Product {
			ref := "leasehold/" + o.Name + ":" + *tag
			args, users[ref] = append(args, ref+"="+strings.Join(o.Packages, ",")), o.User
		}
	}
	dir := *out
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(*repo, dir)
	}
	for _, arg := range args {
		ref, packages, ok := strings.Cut(arg, "=")
		base, _, tagged := strings.Cut(path.Base(ref), ":")
		if !ok || !tagged || packages == "" {
			return fmt.Errorf("%s: want REFERENCE:TAG=PACKAGE[@PATH][,PACKAGE...]", arg)
		}
		if *list {
			fmt.Println(ref)
			continue
		}
		archive, err := filepath.Abs(filepath.Join(dir, base+".tar"))
		if err == nil {
			err = build(ctx, archive, ref, users[ref], strings.Split(packages, ","))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		fmt.Println(archive)
	}
	return nil
}

// build builds the programs of an image beside its archive, where the next build finds them, and
// writes the archive. It replaces an archive atomically.
func build(ctx context.Context, archive, ref, user string, packages []string) error {
	var files []image.File
	for _, p := range packages {
		from, to, placed := strings.Cut(p, "@")
		if !filepath.IsAbs(from) {
			program := image.Program{Repo: *repo, Package: from, Arch: goarch(), Version: *version}
			from = filepath.Join(filepath.Dir(archive), "programs", goarch(), path.Base(from))
			if err := program.Build(ctx, from); err != nil {
				return err
			}
		}
		f, err := image.Programs(from)
		if err != nil {
			return err
		}
		if placed {
			f[0].Name = strings.TrimPrefix(to, "/")
		}
		files = append(files, f...)
	}
	img, err := image.New(goarch(), user, nil, files)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	tmp := archive + ".tmp"
	if err := tarball.WriteToFile(tmp, tag, img); err != nil {
		return err
	}
	return os.Rename(tmp, archive)
}

func goarch() string {
	if arch := os.Getenv("GOARCH"); arch != "" {
		return arch
	}
	return runtime.GOARCH
}
