package main

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// writeArchives writes an archive of each image, for `docker load`, `ctr images import` and skopeo,
// and prints its path. An image is REFERENCE=PROGRAM[,...], see Own, and runs as root. Without
// images, they are leasehold's own, with the tag, and the manifests that use them are written
// beside them. The programs are built beside the archives, where the next build finds them.
func (r release) writeArchives(ctx context.Context, tag string, args []string) error {
	for _, arg := range args {
		ref, programs, _ := strings.Cut(arg, "=")
		base, _, tagged := strings.Cut(path.Base(ref), ":")
		if !tagged || programs == "" {
			return fmt.Errorf("%s: want REFERENCE:TAG=PROGRAM[@PATH][,PROGRAM...]", arg)
		}
		if err := r.writeArchive(ctx, ref, Own{Name: base, Programs: strings.Split(programs, ",")}); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
	}
	if len(args) > 0 {
		return nil
	}
	for _, o := range product {
		if err := r.writeArchive(ctx, "leasehold/"+o.Name+":"+tag, o); err != nil {
			return err
		}
	}
	return r.writeDevManifests(tag)
}

// writeArchive builds the programs of an image, writes its archive, which it replaces atomically,
// and prints its path.
func (r release) writeArchive(ctx context.Context, ref string, o Own) error {
	arch, archive := r.archs[0], filepath.Join(r.dir, o.Name+".tar")
	files, err := r.programFiles(ctx, arch, o.Programs)
	if err != nil {
		return err
	}
	img, err := newImage(arch, o.User, nil, files)
	if err != nil {
		return err
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(archive+".tmp", tag, img); err != nil {
		return err
	}
	if err := os.Rename(archive+".tmp", archive); err != nil {
		return err
	}
	fmt.Println(archive)
	return nil
}
