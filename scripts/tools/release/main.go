// Release builds everything of a release into a directory, and pushes its images to a registry.
// See docs/release.md.
//
//	release build -version VERSION -registry REGISTRY [-arch ARCHS]
//	release push -registry REGISTRY
//	release images [-tag TAG] [-version VERSION] -arch ARCH [IMAGE...]
//	                   writes images as archives, and the manifests that use them
//	release chart -version VERSION -registry REGISTRY
//	                   writes the chart and the manifests, with invented digests, for tests that
//	                   compare them
//	release licences   checks the licences of what the programs link
//
// -repo is the root of the repository, -o the directory of what is written. The same commit and
// toolchain give the same bytes, in any directory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/mod/semver"
)

// release is a release of a commit.
type release struct {
	repo     string // root of the repository
	dir      string // where it is written
	version  string // a semantic version, with v
	registry string // and the first part of the images' names, such as registry.example.org/leasehold

	archs  []string // as GOARCH
	images []Own
	work   string // where programs are built
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	r := release{images: images}
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.StringVar(&r.repo, "repo", ".", "root of the repository")
	f.StringVar(&r.dir, "o", "dist", "`directory` of the release")
	archs := f.String("arch", strings.Join(allArchs, ","), "comma-separated `names`")
	f.StringVar(&r.version, "version", "", "a semantic version, such as v0.1.0")
	f.StringVar(&r.registry, "registry", "", "registry and first part of the images' names")
	tag := f.String("tag", "devel", "tag of the images that `release images` writes")
	if len(args) == 0 {
		args = []string{""}
	}
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	r.archs = strings.Split(*archs, ",")
	for _, path := range []*string{&r.repo, &r.dir} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	switch args[0] {
	case "build":
		if err := r.check(); err != nil {
			return err
		}
		return r.build(ctx)
	case "push":
		if err := r.checkRegistry(); err != nil {
			return err
		}
		return r.push(ctx)
	case "images":
		r.work = filepath.Join(r.dir, "programs")
		return r.writeArchives(ctx, *tag, f.Args())
	case "chart":
		digests := map[string]string{}
		for i, o := range r.images {
			digests[o.Name] = fmt.Sprintf("sha256:%064d", i)
		}
		return errors.Join(r.writeManifests(digests), r.writeChart(digests))
	case "licences":
		modules, _, err := r.linked(ctx)
		if err != nil {
			return err
		}
		for _, m := range modules {
			fmt.Println(m.Path, m.Version, m.licences)
		}
		return nil
	default:
		return fmt.Errorf("unknown command %q; want build, push, images, chart or licences", args[0])
	}
}

// check returns an error if the version or the registry is invalid.
func (r release) check() error {
	if semver.Canonical(r.version) != r.version || r.version == "" {
		return fmt.Errorf("VERSION=%s; want a semantic version such as v0.1.0", r.version)
	}
	return r.checkRegistry()
}

func (r release) checkRegistry() error {
	if _, err := name.NewRepository(r.registry+"/agent", name.StrictValidation); err != nil {
		return fmt.Errorf("REGISTRY=%s: %w; want a registry and a path, such as registry.example.org/leasehold",
			r.registry, err)
	}
	return nil
}
