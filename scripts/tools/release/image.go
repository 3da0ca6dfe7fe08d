package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Own is an image of the product.
type Own struct {
	Name     string   // without registry and tag; the manifests name leasehold/Name
	Packages []string // directories of its programs, relative to the repository; the first is the entrypoint
	User     string   // empty for root
	As       string   // the name of the first program in the image; empty for its own
}

// product are the images of the manifests in daemonset/. The agent's works on the host's files and
// namespaces as root, and has leasectl and the plugin for the init container, which installs it.
var product = []Own{
	{Name: "agent", Packages: []string{"cmd/leasehold-agent", "cmd/leasectl", "plugins/ipam/leasehold"}},
	{Name: "manager", Packages: []string{"cmd/leasehold-manager"}, User: "65532:65532"},
}

// buildProgram builds a static program for Linux, from its directory relative to the repository.
// The same source, version and toolchain give the same bytes, in any directory.
func (r release) buildProgram(ctx context.Context, dir, arch, to string) error {
	// From its own directory, because it may be in another module.
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(r.repo, dir), "build", "-trimpath",
		"-buildvcs=false", "-ldflags", "-s -w -X main.version="+r.version, "-o", to, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOWORK=off", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s for %s: %w\n%s", dir, arch, err, text)
	}
	return nil
}

// File is a file of an image or archive.
type File struct {
	Name string // relative to the root
	Mode int64
	Data []byte
}

// readPrograms returns files with the names and contents of programs.
func readPrograms(paths ...string) ([]File, error) {
	var files []File
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		files = append(files, File{path.Base(p), 0o755, data})
	}
	return files, nil
}

// newImage returns an image for Linux with these files in an empty file system, of which the first
// is the entrypoint. An empty user is root.
func newImage(arch, user string, labels map[string]string, files []File) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		data, err := tarOf(files)
		return io.NopCloser(bytes.NewReader(data)), err
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	config.Config = v1.Config{Entrypoint: []string{"/" + files[0].Name}, User: user, Labels: labels}
	return mutate.ConfigFile(img, config)
}

// tarOf returns an archive of files, sorted by name, without times and owners.
func tarOf(files []File) ([]byte, error) {
	sorted := slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range sorted {
		if err := w.WriteHeader(&tar.Header{Name: f.Name, Mode: f.Mode, Size: int64(len(f.Data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// tarGzOf returns a compressed archive of files, sorted by name, without times and owners.
func tarGzOf(files []File) ([]byte, error) {
	data, err := tarOf(files)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}
