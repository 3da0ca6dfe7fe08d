package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// writeArchives writes an archive of each image, for `docker load`, `ctr images import` and skopeo,
// and prints its path. An image is REFERENCE=PROGRAM[,...], see Own, and runs as root. Without
// images, they are leasehold's own, with the tag, and the manifests that use them are written
// beside them. The programs are built beside the archives, where the next build finds them.
func (r release) writeArchives(ctx context.Context, tag string, args []string) error {
	images := map[string]Own{} // by reference
	for _, arg := range args {
		ref, programs, _ := strings.Cut(arg, "=")
		base, _, tagged := strings.Cut(path.Base(ref), ":")
		if !tagged || programs == "" {
			return fmt.Errorf("%s: want REFERENCE:TAG=PROGRAM[@PATH][,PROGRAM...]", arg)
		}
		images[ref] = Own{Name: base, Programs: strings.Split(programs, ",")}
	}
	if len(args) == 0 {
		for _, o := range product {
			images["leasehold/"+o.Name+":"+tag] = o
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(images)) {
		archive := filepath.Join(r.dir, images[ref].Name+".tar")
		if err := r.writeArchive(ctx, archive, ref, images[ref]); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		fmt.Println(archive)
	}
	if len(args) > 0 {
		return nil
	}
	return r.writeDevManifests(tag)
}

// writeArchive builds the programs of an image, and writes its archive. It replaces an archive
// atomically.
func (r release) writeArchive(ctx context.Context, archive, ref string, o Own) error {
	arch := r.archs[0]
	for _, p := range o.Programs {
		if dir, _, _ := strings.Cut(p, "@"); !filepath.IsAbs(dir) {
			if err := r.buildProgram(ctx, dir, arch); err != nil {
				return err
			}
		}
	}
	files, err := r.programFiles(arch, o.Programs)
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
	return os.Rename(archive+".tmp", archive)
}
