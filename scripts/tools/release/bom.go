package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// goVersion returns the version of the toolchain as a semantic version without v.
func goVersion() string { return strings.TrimPrefix(runtime.Version(), "go") }

// materials are what a bill of materials lists.
type materials struct {
	licences     map[string][]string // of the modules whose licences were checked, by path@version
	listed       map[string]bool     // the references of the libraries in components
	components   []cdx.Component
	dependencies []cdx.Dependency
}

// writeBOM writes the bill of materials of the programs, in CycloneDX's format, from the build
// information that is in each of them.
func (r release) writeBOM(paths built, modules []module) error {
	m := materials{licences: map[string][]string{}, listed: map[string]bool{}}
	for _, mod := range modules {
		m.licences[mod.Path+"@"+mod.Version] = mod.licences
	}
	for _, arch := range r.archs {
		for _, path := range sortedValues(paths[arch]) {
			if err := m.addProgram(path, arch, r.version); err != nil {
				return fmt.Errorf("%s: %w", filepath.Base(path), err)
			}
		}
	}
	slices.SortFunc(m.components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	b := cdx.NewBOM()
	b.Metadata = &cdx.Metadata{Component: &cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: "leasehold",
		Name: "leasehold", Version: r.version}}
	b.Components, b.Dependencies = &m.components, &m.dependencies
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(b); err != nil {
		return err
	}
	return r.write("leasehold-"+r.version+".cdx.json", out.Bytes())
}

// addProgram lists a program and the modules that it links.
func (m *materials) addProgram(path, arch, version string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	purl := fmt.Sprintf("pkg:golang/%s@%s?goos=linux&goarch=%s", info.Path, version, arch)
	m.components = append(m.components, cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: purl,
		Name: filepath.Base(path), Version: version, PackageURL: purl, Description: "for linux/" + arch,
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(data))}},
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}})
	std, err := m.addLibrary("std", strings.TrimPrefix(info.GoVersion, "go"), "")
	if err != nil {
		return err
	}
	on := []string{std}
	for _, d := range info.Deps {
		if d.Replace != nil {
			return fmt.Errorf("%s is replaced; a release has no replaced modules", d.Path)
		}
		ref, err := m.addLibrary(d.Path, d.Version, d.Sum)
		if err != nil {
			return err
		}
		on = append(on, ref)
	}
	m.dependencies = append(m.dependencies, cdx.Dependency{Ref: purl, Dependencies: &on})
	return nil
}

// addLibrary lists a module once, and returns its reference. It returns an error if the licence of
// the module was not checked.
func (m *materials) addLibrary(path, version, sum string) (ref string, err error) {
	ref = "pkg:golang/" + path + "@" + version
	if m.listed[ref] {
		return ref, nil
	}
	known, found := m.licences[path+"@"+version]
	if !found {
		return "", fmt.Errorf("%s@%s is linked, but its licence was not checked", path, version)
	}
	m.listed[ref] = true
	c := cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: ref, Name: path, Version: version, PackageURL: ref}
	var choices cdx.Licenses
	for _, id := range known {
		choices = append(choices, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	c.Licenses = &choices
	// The hash of a module is that of its files' names and hashes.
	if hash, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:")); err == nil && len(hash) > 0 {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(hash)}}
	}
	m.components = append(m.components, c)
	return ref, nil
}
