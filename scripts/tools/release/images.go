package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The annotations of an image in an OCI layout: its tag, and its whole name for containerd.
const (
	tagAnnotation  = "org.opencontainers.image.ref.name"
	nameAnnotation = "io.containerd.image.name"
)

// writeImages writes an archive of an OCI image layout with the images of all architectures, one
// index for each name, and returns the digests of the indexes by name. Each is in the layout twice,
// by its tag and as manifests name it, because containerd finds an imported image only by a name
// that it was imported with.
func (r release) writeImages(ctx context.Context, licences []File) (map[string]string, error) {
	dir := filepath.Join(r.work, "layout")
	target, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, err
	}
	digests := map[string]string{}
	for _, o := range r.images {
		index, err := r.index(ctx, o, licences)
		if err != nil {
			return nil, err
		}
		repository := r.registry + "/" + o.Name
		err = target.AppendIndex(index, layout.WithAnnotations(map[string]string{
			tagAnnotation: r.version, nameAnnotation: repository + ":" + r.version}))
		if err != nil {
			return nil, err
		}
		byDigest, err := partial.Descriptor(index)
		if err != nil {
			return nil, err
		}
		digests[o.Name] = byDigest.Digest.String()
		byDigest.Annotations = map[string]string{nameAnnotation: repository + "@" + digests[o.Name]}
		if err := target.AppendDescriptor(*byDigest); err != nil {
			return nil, err
		}
	}
	files, err := readAll(dir)
	if err != nil {
		return nil, err
	}
	data, err := tarOf(files)
	if err != nil {
		return nil, err
	}
	return digests, r.write("leasehold-"+r.version+"-images.tar", data)
}

// index returns an image for all architectures.
func (r release) index(ctx context.Context, o Own, licences []File) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range r.archs {
		files, err := r.programFiles(ctx, arch, o.Programs)
		if err != nil {
			return nil, err
		}
		img, err := newImage(arch, o.User, map[string]string{
			"org.opencontainers.image.title":    "leasehold " + o.Name,
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		}, append(files, licences...))
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	return index, nil
}

// readAll returns all files below a directory.
func readAll(dir string) ([]File, error) {
	var files []File
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files = append(files, File{Name: filepath.ToSlash(rel), Mode: 0o644, Data: data})
		return err
	})
	return files, err
}

// push pushes the images of a release that was built to a registry, with their version as the tag,
// and prints their names by digest. Credentials are those of `docker login`.
func (r release) push(ctx context.Context) error {
	archives, err := filepath.Glob(filepath.Join(r.dir, "leasehold-*-images.tar"))
	if err != nil {
		return err
	}
	if len(archives) != 1 {
		return fmt.Errorf("%s has %d archives of images, want one; run `make release` first", r.dir, len(archives))
	}
	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if text, err := exec.CommandContext(ctx, "tar", "-C", dir, "-xf", archives[0]).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", archives[0], err, text)
	}
	layout, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	manifest, err := layout.IndexManifest()
	if err != nil {
		return err
	}
	for _, m := range manifest.Manifests {
		if m.Annotations[tagAnnotation] == "" {
			continue // the same image by its digest
		}
		index, err := layout.ImageIndex(m.Digest)
		if err != nil {
			return err
		}
		ref, err := name.NewTag(r.registry+"/"+path.Base(m.Annotations[nameAnnotation]), name.StrictValidation)
		if err != nil {
			return err
		}
		if err := remote.WriteIndex(ref, index, remote.WithContext(ctx),
			remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return err
		}
		fmt.Printf("%s@%s\n", ref, m.Digest)
	}
	return nil
}
