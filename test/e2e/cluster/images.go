package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const (
	pauseImage = "leasehold/pause:test"
	// memberImage runs the etcd of the test cluster, which is mounted into the container.
	memberImage = "leasehold/member:test"
	// echoImage has the name in the manifest of Kruise's manual, so that the manifest can be used
	// unchanged.
	echoImage = "cilium/echoserver:latest"
)

// Image is a container image: static programs in the root of an empty file system.
type Image struct {
	Tag      string
	Programs []Program
}

// Program is a Go program and its module, relative to the repository.
type Program struct{ Module, Package string }

// ProductImages returns the images in the project's manifests.
func (c *Cluster) ProductImages(tag string) []Image {
	images := []Image{{Tag: "leasehold/installer:" + tag, Programs: []Program{
		{".", "daemonset/installer"}, // the first is the entrypoint
		{".", "plugins/ipam/leasehold"},
	}}}
	for _, name := range []string{"agent", "manager"} {
		program := Program{".", "cmd/leasehold-" + name}
		if exists(filepath.Join(c.Repo, program.Package)) {
			images = append(images, Image{Tag: "leasehold/" + name + ":" + tag, Programs: []Program{program}})
		}
	}
	return images
}

func testImages() []Image {
	return []Image{
		{Tag: pauseImage, Programs: []Program{{"test/e2e", "images/pause"}}},
		{Tag: echoImage, Programs: []Program{{"test/e2e", "images/echo"}}},
		{Tag: memberImage, Programs: []Program{{"test/e2e", "images/member"}}},
	}
}

var leasectl = Program{".", "cmd/leasectl"}

// Leasectl returns the path of leasectl, which must be run on a node.
func (c *Cluster) Leasectl() string { return c.path("bin/own/leasectl") }

// BuildImages builds images into images/, and returns the paths of the tarballs.
func (c *Cluster) BuildImages(ctx context.Context, images []Image) ([]string, error) {
	var tarballs []string
	for _, image := range images {
		files := map[string]string{}
		for _, p := range image.Programs {
			bin, err := c.buildProgram(ctx, p)
			if err != nil {
				return nil, err
			}
			files[filepath.Base(bin)] = bin
		}
		ref, err := name.NewTag(image.Tag)
		if err != nil {
			return nil, err
		}
		to := c.path(fmt.Sprintf("images/%s.tar", filepath.Base(ref.RepositoryStr())))
		if err := writeImage(to, ref, files, "/"+filepath.Base(image.Programs[0].Package)); err != nil {
			return nil, fmt.Errorf("%s: %w", image.Tag, err)
		}
		tarballs = append(tarballs, to)
	}
	return tarballs, nil
}

func (c *Cluster) buildProgram(ctx context.Context, p Program) (string, error) {
	to := c.path("bin/own/" + filepath.Base(p.Package))
	dir := filepath.Join(c.Repo, p.Module)
	return to, c.goTool(ctx, "building "+p.Package, dir,
		"build", "-trimpath", "-ldflags", "-s -w", "-o", to, "./"+p.Package)
}

func writeImage(to string, ref name.Tag, files map[string]string, entrypoint string) error {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, file := range slices.Sorted(maps.Keys(files)) { // for reproducible images
		data, err := os.ReadFile(files[file])
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: file, Mode: 0o755, Size: int64(len(data))}); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", goarch
	config.Config.Entrypoint = []string{entrypoint}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return tarball.WriteToFile(to, ref, image)
}

// importImages imports all built images on a node.
func (n *Node) importImages(ctx context.Context) error {
	tarballs, err := filepath.Glob(n.cluster.path("images/*.tar"))
	if err != nil {
		return err
	}
	for _, t := range tarballs {
		if _, err := n.Ctr(ctx, "images", "import", t); err != nil {
			return err
		}
	}
	return nil
}
