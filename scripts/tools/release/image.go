package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
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
	Name string // without registry and tag; the manifests name leasehold/Name
	// Programs are DIRECTORY[@PATH]. The first one is the entrypoint. DIRECTORY is that of a
	// program, relative to the repository, or the absolute path of a program that is built
	// already. PATH is where it is in the image, by default in the root under its own name.
	Programs []string
	User     string // empty for root
}

// product are the images of the manifests in daemonset/. The agent's works on the host's files and
// namespaces as root, and has leasectl and the plugin for the init container, which installs it.
var product = []Own{
	{Name: "agent", Programs: []string{"cmd/leasehold-agent", "cmd/leasectl", "plugins/ipam/leasehold"}},
	{Name: "manager", Programs: []string{"cmd/leasehold-manager"}, User: "65532:65532"},
}

// golang runs the go command for Linux in the directory of a program, relative to the repository,
// because the program may be in another module. It returns the standard output.
func (r release) golang(ctx context.Context, dir, arch string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"-C", filepath.Join(r.repo, dir)}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0",
		"GOWORK=off", "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s of %s for %s: %w\n%s", args[0], dir, arch, err, &stderr)
	}
	return out, nil
}

// binary returns the path of a built program.
func (r release) binary(arch, dir string) string {
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(r.work, arch, path.Base(dir))
}

// File is a file of an image or archive.
type File struct {
	Name string // relative to the root
	Mode int64
	Data []byte
}

// programFiles builds static programs, which are given as in an Own, and returns their files. The
// same source, version and toolchain give the same bytes, in any directory.
func (r release) programFiles(ctx context.Context, arch string, programs []string) ([]File, error) {
	var files []File
	for _, p := range programs {
		dir, to, _ := strings.Cut(p, "@")
		if !filepath.IsAbs(dir) {
			if _, err := r.golang(ctx, dir, arch, "build", "-trimpath", "-buildvcs=false", "-ldflags",
				"-s -w -X main.version="+r.version, "-o", r.binary(arch, dir), "."); err != nil {
				return nil, err
			}
		}
		data, err := os.ReadFile(r.binary(arch, dir))
		if err != nil {
			return nil, err
		}
		files = append(files, File{cmp.Or(strings.TrimPrefix(to, "/"), path.Base(dir)), 0o755, data})
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
	img, err := mutate.ConfigFile(base, &v1.ConfigFile{OS: "linux", Architecture: arch,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: []string{"/" + files[0].Name}, User: user, Labels: labels}})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, layer)
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

// writeTarGz writes a compressed archive of files, as tarOf returns it.
func (r release) writeTarGz(name string, files []File) error {
	data, err := tarOf(files)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		return err
	}
	return errors.Join(w.Close(), r.write(name, out.Bytes()))
}
