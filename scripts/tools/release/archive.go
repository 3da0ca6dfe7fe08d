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
// and prints its path. An image is REFERENCE=PACKAGE[@PATH][,...]. A PACKAGE is a directory below
// the repository, or the absolute path of a program that is built already. PATH is where it is in
// the image, by default in the root under its own name. The first one is the entrypoint. Without
// images, they are leasehold's own, with the tag.
func (r release) writeArchives(ctx context.Context, tag string, images []string) error {
	users := map[string]string{} // of leasehold's own images; the others have root
	if len(images) == 0 {
		for _, o := range product {
			ref := "leasehold/" + o.Name + ":" + tag
			images, users[ref] = append(images, ref+"="+strings.Join(o.Packages, ",")), o.User
		}
	}
	for _, arg := range images {
		ref, packages, ok := strings.Cut(arg, "=")
		base, _, tagged := strings.Cut(path.Base(ref), ":")
		if !ok || !tagged || packages == "" {
			return fmt.Errorf("%s: want REFERENCE:TAG=PACKAGE[@PATH][,PACKAGE...]", arg)
		}
		archive := filepath.Join(r.dir, base+".tar")
		if err := r.writeArchive(ctx, archive, ref, users[ref], strings.Split(packages, ",")); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		fmt.Println(archive)
	}
	return nil
}

// writeArchive builds the programs of an image beside its archive, where the next build finds them,
// and writes the archive. It replaces an archive atomically.
func (r release) writeArchive(ctx context.Context, archive, ref, user string, packages []string) error {
	arch := r.archs[0]
	var files []File
	for _, p := range packages {
		from, to, placed := strings.Cut(p, "@")
		if !filepath.IsAbs(from) {
			program := filepath.Join(r.dir, "programs", arch, path.Base(from))
			if err := r.buildProgram(ctx, from, arch, program); err != nil {
				return err
			}
			from = program
		}
		f, err := readPrograms(from)
		if err != nil {
			return err
		}
		if placed {
			f[0].Name = strings.TrimPrefix(to, "/")
		}
		files = append(files, f...)
	}
	img, err := newImage(arch, user, nil, files)
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
