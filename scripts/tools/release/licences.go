package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
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
	Path, Version, Sum string
	Main               bool              // the product's own
	texts              map[string][]byte // licences and notices, by their paths in the module
	licences           []string          // SPDX identifiers, sorted
	linkedBy           []string          // architectures and programs
}

// licenceFile matches names of licences and of notices that have to be kept with them.
var licenceFile = regexp.MustCompile(`^(?i)(licen[cs]e|copying|notice|patents|unlicense)([.-].*)?$`)

// linked returns the modules that the programs link, sorted, without the product's own and with the
// standard library, and the files of their licences and the product's. It returns an error if a
// licence is not allowed or not known.
func (r release) linked(ctx context.Context) (all []*module, licences []File, err error) {
	modules := map[string]*module{}
	for _, dir := range r.programs() {
		for _, arch := range r.archs {
			if err := r.addLinked(ctx, modules, dir, arch); err != nil {
				return nil, nil, err
			}
		}
	}
	own, err := os.ReadFile(filepath.Join(r.repo, "LICENSE"))
	licences = []File{{Name: "LICENSE", Mode: 0o644, Data: own}}
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		m := modules[ref]
		if e := m.identify(); e != nil {
			err = errors.Join(err, fmt.Errorf("%s %s: %w", m.Path, m.Version, e))
		}
		for name, text := range m.texts {
			licences = append(licences, File{path.Join("licenses", m.Path+"@"+m.Version, name), 0o644, text})
		}
		all = append(all, m)
	}
	return all, licences, err
}

// addLinked adds the modules of a program for an architecture, with the files of licences that
// apply to its packages: those between the package's directory and the module's.
func (r release) addLinked(ctx context.Context, modules map[string]*module, program, arch string) error {
	out, err := r.golang(ctx, program, arch, "list", "-deps", "-json=Dir,Root,Standard,Module", ".")
	if err != nil {
		return err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			Dir, Root string // Root is that of the module, or of Go
			Standard  bool
			Module    *module
		}
		if err := d.Decode(&p); err != nil {
			return err
		}
		if p.Standard {
			// Licences further down are those of files that are not linked: BoringSSL's objects.
			p.Dir, p.Module = p.Root, &module{Path: "std", Version: goVersion()}
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		m := modules[p.Module.ref()]
		if m == nil {
			m = p.Module
			m.texts = map[string][]byte{}
			modules[m.ref()] = m
		}
		m.linkedBy = append(m.linkedBy, arch+" "+program)
		if err := m.readLicences(p.Root, p.Dir); err != nil {
			return err
		}
	}
	return nil
}

// readLicences reads the files of licences in a directory of a module and in those above it, up to
// the module's root.
func (m *module) readLicences(root, dir string) error {
	dir, err := filepath.Rel(root, dir)
	if err != nil {
		return err
	}
	for ; ; dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() || !licenceFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
				continue
			}
			file := filepath.Join(dir, e.Name())
			if m.texts[file], err = os.ReadFile(filepath.Join(root, file)); err != nil {
				return err
			}
		}
		if dir == "." {
			return nil
		}
	}
}

// identify finds the licences of a module. A text that is a licence for the most part is one. Only
// a notice may be something else.
func (m *module) identify() error {
	for _, f := range slices.Sorted(maps.Keys(m.texts)) {
		name := strings.ToUpper(filepath.Base(f))
		switch name {
		case "PATENTS", "LICENSE.DOCS": // a grant beside the licence; the licence of what is not linked
			continue
		}
		found := licensecheck.Scan(m.texts[f])
		switch {
		case found.Percent >= 50:
		case strings.HasPrefix(name, "NOTICE"):
			continue
		default:
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
		return fmt.Errorf("no known licence in %q", slices.Sorted(maps.Keys(m.texts)))
	}
	return nil
}
