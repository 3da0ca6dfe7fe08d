package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// goVersion returns the version of the toolchain as a semantic version without v.
func goVersion() string { return strings.TrimPrefix(runtime.Version(), "go") }

// allowed are the licences, by their SPDX identifiers, under which linked code may be. They ask for
// nothing but their text and the notices beside it, which a release contains.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// module is a Go module that the programs link.
type module struct {
	Path, Version, Dir string
	files              []string // licences and notices, relative to Dir
	licences           []string // SPDX identifiers, sorted
}

// licenceFile matches names of licences and of notices that have to be kept with them.
var licenceFile = regexp.MustCompile(`^(?i)(licen[cs]e|copying|notice|patents|unlicense)([.-].*)?$`)

// linked returns the modules that the programs link, sorted, without the product's own and with the
// standard library, and their licences. It returns an error if one is not allowed or not known.
func (r release) linked(ctx context.Context) (all []module, err error) {
	modules := map[string]*module{}
	for _, dir := range r.programs {
		for _, arch := range r.archs {
			if err := r.addLinked(ctx, modules, dir, arch); err != nil {
				return nil, err
			}
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		m := modules[ref]
		slices.Sort(m.files)
		m.files = slices.Compact(m.files)
		if e := m.identify(); e != nil {
			err = errors.Join(err, fmt.Errorf("%s %s: %w", m.Path, m.Version, e))
		}
		all = append(all, *m)
	}
	return all, err
}

// addLinked adds the modules of a program for an architecture, with the files of licences that
// apply to its packages: those between the package's directory and the module's.
func (r release) addLinked(ctx context.Context, modules map[string]*module, program, arch string) error {
	cmd := exec.CommandContext(ctx, "go", "-C", filepath.Join(r.repo, program), "list", "-deps",
		"-json=Dir,Standard,Module,Root", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOWORK=off", "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, Root string
			Standard  bool
			Module    *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var m module
		switch {
		case p.Standard:
			// Licences further down are those of files that are not linked: BoringSSL's objects.
			m = module{Path: "std", Version: goVersion(), Dir: p.Root, files: []string{"LICENSE", "PATENTS"}}
		case p.Module == nil || p.Module.Main:
			continue
		default:
			m = module{Path: p.Module.Path, Version: p.Module.Version, Dir: p.Module.Dir}
			if m.files, err = licencesAbove(p.Dir, m.Dir); err != nil {
				return err
			}
		}
		if known := modules[m.ref()]; known != nil {
			known.files = append(known.files, m.files...)
		} else {
			modules[m.ref()] = &m
		}
	}
}

// licencesAbove returns the files of licences in a directory and in those above it, up to root.
// Their paths are relative to root.
func licencesAbove(dir, root string) (files []string, err error) {
	for ; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if rel, err := filepath.Rel(root, filepath.Join(dir, e.Name())); err == nil && !e.IsDir() &&
				licenceFile.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
				files = append(files, rel)
			}
		}
		if dir == root || len(dir) <= len(root) {
			return files, nil
		}
	}
}

// identify reads the licences of a module. A text that is a licence for the most part is one. Only
// a notice may be something else.
func (m *module) identify() error {
	for _, f := range m.files {
		switch strings.ToUpper(filepath.Base(f)) {
		case "PATENTS", "LICENSE.DOCS": // a grant beside the licence; the licence of what is not linked
			continue
		}
		text, err := os.ReadFile(filepath.Join(m.Dir, f))
		if err != nil {
			return err
		}
		found := licensecheck.Scan(text)
		if found.Percent < 50 {
			if strings.HasPrefix(strings.ToUpper(filepath.Base(f)), "NOTICE") {
				continue
			}
			return fmt.Errorf("%s is not a known licence", f)
		}
		for _, match := range found.Match {
			if !slices.Contains(allowed, match.ID) {
				return fmt.Errorf("%s is under %s; allowed are %s", f, match.ID, strings.Join(allowed, ", "))
			}
			if !slices.Contains(m.licences, match.ID) {
				m.licences = append(m.licences, match.ID)
			}
		}
	}
	slices.Sort(m.licences)
	if len(m.licences) == 0 {
		return fmt.Errorf("no known licence in %q", m.files)
	}
	return nil
}

// licenceFiles returns the licence of the product and those of all that it links.
func (r release) licenceFiles(modules []module) ([]File, error) {
	own, err := os.ReadFile(filepath.Join(r.repo, "LICENSE"))
	if err != nil {
		return nil, err
	}
	files := []File{{Name: "LICENSE", Mode: 0o644, Data: own}}
	for _, m := range modules {
		for _, f := range m.files {
			data, err := os.ReadFile(filepath.Join(m.Dir, f))
			if err != nil {
				return nil, err
			}
			files = append(files, File{Name: filepath.ToSlash(filepath.Join("licenses",
				m.Path+"@"+m.Version, f)), Mode: 0o644, Data: data})
		}
	}
	return files, nil
}
