package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

var (
	allArchs = []string{"amd64", "arm64"}
	// images are the product's images, and that of the chart's hooks, which has kubectl.
	images = append(slices.Clone(product), Own{Name: "leasectl", User: "65532:65532",
		Programs: []string{"cmd/leasectl@kubectl-leasehold", "scripts/tools/kubectl"}})
)

// programs returns the directories of the images' programs.
func (r release) programs() []string {
	var all []string
	for _, o := range r.images {
		for _, p := range o.Programs {
			dir, _, _ := strings.Cut(p, "@")
			all = append(all, dir)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// build writes the whole release into an empty directory.
func (r release) build(ctx context.Context) error {
	if err := errors.Join(os.RemoveAll(r.dir), os.MkdirAll(r.dir, 0o755)); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r.work = work
	modules, licences, err := r.linked(ctx)
	if err != nil {
		return err
	}
	if err := r.writePrograms(ctx, licences); err != nil {
		return err
	}
	digests, err := r.writeImages(ctx, licences)
	if err != nil {
		return err
	}
	return errors.Join(r.writeManifests(digests), r.writeKrew(), r.writeChart(digests), r.writeBOM(modules),
		r.writeChecksums())
}

// writePrograms writes an archive of the programs and of the licences for each architecture.
func (r release) writePrograms(ctx context.Context, licences []File) error {
	for _, arch := range r.archs {
		fmt.Fprintln(os.Stderr, "building for", arch)
		isKubectl := func(dir string) bool { return path.Base(dir) == "kubectl" } // for the image of leasectl only
		files, err := r.programFiles(ctx, arch, slices.DeleteFunc(r.programs(), isKubectl))
		if err != nil {
			return err
		}
		if err := r.writeTarGz(r.programsArchive(arch), append(files, licences...)); err != nil {
			return err
		}
	}
	return nil
}

// write writes a file of the release.
func (r release) write(name string, data []byte) error {
	return os.WriteFile(filepath.Join(r.dir, name), data, 0o644)
}

// writeChecksums writes SHA256SUMS, in the format of sha256sum, for all files of the release.
func (r release) writeChecksums() error {
	files, err := readAll(r.dir)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(f.Data), f.Name)
	}
	return r.write("SHA256SUMS", sums.Bytes())
}

// writeKrew writes the manifest of the kubectl plugin for krew, with the version and the sums of
// the archives, which must have been written before. It has all architectures, or is left out.
func (r release) writeKrew() error {
	if len(r.archs) < len(allArchs) {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(r.repo, "daemonset/krew.yaml"))
	if err != nil {
		return err
	}
	replace := []string{"@VERSION@", r.version}
	for _, arch := range r.archs {
		archive, err := os.ReadFile(filepath.Join(r.dir, r.programsArchive(arch)))
		if err != nil {
			return err
		}
		replace = append(replace, "@"+arch+"@", fmt.Sprintf("%x", sha256.Sum256(archive)))
	}
	return r.write(fmt.Sprintf("leasehold-%s-krew.yaml", r.version),
		[]byte(strings.NewReplacer(replace...).Replace(string(data))))
}

// programsArchive is the file with the programs for an architecture.
func (r release) programsArchive(arch string) string {
	return fmt.Sprintf("leasehold-%s-linux-%s.tar.gz", r.version, arch)
}
