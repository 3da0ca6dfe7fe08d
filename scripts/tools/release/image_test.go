package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// filesOf returns the files of an image with one layer, in their order in the layer. All are of
// root.
func filesOf(t *testing.T, image v1.Image) (files []File) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	must(t, err)
	defer r.Close()
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must(t, err)
		content, err := io.ReadAll(archive)
		if err != nil || h.Uid != 0 {
			t.Fatalf("%s of %d: %v", h.Name, h.Uid, err)
		}
		files = append(files, File{h.Name, h.Mode, content})
	}
}

// TestArchive builds an image of a program of the repository and one that is built already.
func TestArchive(t *testing.T) {
	out, built := t.TempDir(), filepath.Join(t.TempDir(), "built")
	must(t, os.WriteFile(built, []byte("a program"), 0o700))
	must(t, run(t.Context(), []string{"images", "-repo", "../../..", "-o", out, "-arch", "amd64",
		"leasehold/pause:test=test/e2e/images/pause@/bin/pause," + built}))
	tag, err := name.NewTag("leasehold/pause:test")
	must(t, err)
	img, err := tarball.ImageFromPath(filepath.Join(out, "pause.tar"), &tag)
	must(t, err)
	c, err := img.ConfigFile()
	if err != nil || len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/bin/pause" {
		t.Errorf("configuration %+v, %v", c, err)
	}
	var files []string
	for _, f := range filesOf(t, img) {
		files = append(files, f.Name)
	}
	if !slices.Equal(files, []string{"bin/pause", "built"}) {
		t.Errorf("files %q", files)
	}
}

// TestImagesHaveBothNames checks the names that `ctr images import` gives images of a release.
func TestImagesHaveBothNames(t *testing.T) {
	r := testRelease(t, "../../..")
	r.work = t.TempDir()
	built := filepath.Join(r.work, "built")
	must(t, errors.Join(os.Mkdir(r.dir, 0o755), os.WriteFile(built, []byte("a program"), 0o700)))
	r.images = []Own{{Name: "agent", Programs: []string{built}}, {Name: "manager", Programs: []string{built}}}
	digests, err := r.writeImages(t.Context(), nil)
	must(t, err)
	written, err := layout.ImageIndexFromPath(filepath.Join(r.work, "layout"))
	must(t, err)
	index, err := written.IndexManifest()
	must(t, err)
	var names, want []string
	for _, m := range index.Manifests {
		names = append(names, m.Annotations["io.containerd.image.name"])
	}
	for _, o := range r.images {
		repository := r.registry + "/" + o.Name
		want = append(want, repository+":"+r.version, repository+"@"+digests[o.Name])
	}
	if !slices.Equal(names, want) {
		t.Errorf("the names are %q, want %q", names, want)
	}
}
