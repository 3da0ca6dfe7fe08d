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
	Path, Version, Dir, Sum string
	Main                    bool     // the product's own
	files                   []string // licences and notices, relative to Dir
	texts                   []File   // of files, below licenses/
	licences                []string // SPDX identifiers, sorted
	linkedBy                []string // architectures and programs
}

// licenceFile matches names of licences and of notices that have to be kept with them.
var licenceFile = regexp.MustCompile(`^(?i)(licen[cs]e|copying|notice|patents|unlicense)([.-].*)?$`)

// linked returns the modules that the programs link, sorted, without the product's own and with the
// standard library, and their licences. It returns an error if one is not allowed or not known.
func (r release) linked(ctx context.Context) (all []module, err error) {
	modules := map[string]*module{}
	for _, dir := range r.programs() {
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
	goroot, err := r.golang(ctx, program, arch, "env", "GOROOT")
	if err != nil {
		return err
	}
	out, err := r.golang(ctx, program, arch, "list", "-deps", "-json=Dir,Standard,Module", ".")
	if err != nil {
		return err
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir      string
			Standard bool
			Module   *module
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if p.Standard {
			// Licences further down are those of files that are not linked: BoringSSL's objects.
			p.Dir = string(bytes.TrimSpace(goroot))
			p.Module = &module{Path: "std", Version: goVersion(), Dir: p.Dir}
		}
		if p.Module == nil || p.Module.Main {
			continue
		}
		m := modules[p.Module.ref()]
		if m == nil {
			m = p.Module
			modules[m.ref()] = m
		}
		files, err := licencesAbove(p.Dir, m.Dir)
		if err != nil {
			return err
		}
		m.files, m.linkedBy = append(m.files, files...), append(m.linkedBy, arch+" "+program)
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
			rel, err := filepath.Rel(root, filepath.Join(dir, e.Name()))
			if err != nil || !filepath.IsLocal(rel) {
				return nil, fmt.Errorf("%s is not below %s", dir, root)
			}
			if !e.IsDir() && licenceFile.MatchString(e.Name()) && filepath.Ext(e.Name()) != ".go" {
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
		text, err := os.ReadFile(filepath.Join(m.Dir, f))
		if err != nil {
			return err
		}
		m.texts = append(m.texts, File{path.Join("licenses", m.Path+"@"+m.Version, f), 0o644, text})
		switch strings.ToUpper(filepath.Base(f)) {
		case "PATENTS", "LICENSE.DOCS": // a grant beside the licence; the licence of what is not linked
			continue
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
		files = append(files, m.texts...)
	}
	return files, nil
}
