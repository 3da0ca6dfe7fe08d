package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

var (
	allArchs = []string{"amd64", "arm64"}
	programs = []string{"plugins/ipam/leasehold", "cmd/leasectl", "cmd/leasehold-agent", "cmd/leasehold-manager",
		"scripts/tools/kubectl"}
)

// images are the product's images, and that of the chart's hooks, which has kubectl.
var images = append(slices.Clone(product),
	Own{Name: "leasectl", Packages: []string{"cmd/leasectl", "scripts/tools/kubectl"}, User: "65532:65532",
		As: "kubectl-leasehold"})

// build writes the whole release into an empty directory.
func (r release) build(ctx context.Context) error {
	if err := os.RemoveAll(r.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	modules, err := r.linked(ctx)
	if err != nil {
		return err
	}
	licences, err := r.licenceFiles(modules)
	if err != nil {
		return err
	}
	if err := r.writePrograms(ctx, work, licences); err != nil {
		return err
	}
	digests, err := r.writeImages(licences, work)
	if err != nil {
		return err
	}
	return errors.Join(r.writeManifests(digests), r.writeKrew(), r.writeChart(digests), r.writeBOM(work, modules),
		r.writeChecksums())
}

// binary is the path of a built program.
func binary(work, arch, program string) string {
	return filepath.Join(work, arch, filepath.Base(program))
}

// writePrograms builds all programs in the directory work, and writes an archive of them and of the
// licences for each architecture.
func (r release) writePrograms(ctx context.Context, work string, licences []File) error {
	for _, arch := range r.archs {
		var own []string
		for _, dir := range r.programs {
			fmt.Fprintln(os.Stderr, "building", dir, arch)
			to := binary(work, arch, dir)
			if err := r.buildProgram(ctx, dir, arch, to); err != nil {
				return err
			}
			if filepath.Base(dir) != "kubectl" { // for the image of leasectl only
				own = append(own, to)
			}
		}
		files, err := readPrograms(own...)
		if err != nil {
			return err
		}
		data, err := tarGzOf(append(files, licences...))
		if err != nil {
			return err
		}
		if err := r.write(r.programsArchive(arch), data); err != nil {
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
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(r.dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	return r.write("SHA256SUMS", []byte(sums.String()))
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
