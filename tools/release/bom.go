package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// goVersion returns the version of the toolchain as a semantic version without v.
func goVersion() string { return strings.TrimPrefix(runtime.Version(), "go") }

// writeBOM writes the bill of materials of the programs, in CycloneDX's format, from the build
// information that is in each of them.
func (r release) writeBOM(paths built, modules []module) error {
	licences := map[string][]string{}
	for _, m := range modules {
		licences[m.Path+"@"+m.Version] = m.licences
	}
	var components []cdx.Component
	var dependencies []cdx.Dependency
	libraries := map[string]bool{}
	library := func(path, version, sum string) (string, error) {
		ref := "pkg:golang/" + path + "@" + version
		if libraries[ref] {
			return ref, nil
		}
		known, found := licences[path+"@"+version]
		if !found {
			return "", fmt.Errorf("%s@%s is linked, but its licence was not checked", path, version)
		}
		libraries[ref] = true
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
		components = append(components, c)
		return ref, nil
	}
	for _, arch := range r.archs {
		for _, path := range sortedValues(paths[arch]) {
			info, err := buildinfo.ReadFile(path)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name := path[strings.LastIndex(path, "/")+1:]
			purl := fmt.Sprintf("pkg:golang/%s@%s?goos=linux&goarch=%s", info.Path, r.version, arch)
			components = append(components, cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: purl, Name: name,
				Version: r.version, PackageURL: purl, Description: "for linux/" + arch,
				Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(data))}},
				Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}})
			on := []string{}
			std, err := library("std", strings.TrimPrefix(info.GoVersion, "go"), "")
			if err != nil {
				return err
			}
			on = append(on, std)
			for _, d := range info.Deps {
				if d.Replace != nil {
					return fmt.Errorf("%s replaces %s; a release has no replaced modules", name, d.Path)
				}
				ref, err := library(d.Path, d.Version, d.Sum)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				on = append(on, ref)
			}
			dependencies = append(dependencies, cdx.Dependency{Ref: purl, Dependencies: &on})
		}
	}
	slices.SortFunc(components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	b := cdx.NewBOM()
	b.Metadata = &cdx.Metadata{Component: &cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: "leasehold",
		Name: "leasehold", Version: r.version}}
	b.Components, b.Dependencies = &components, &dependencies
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(b); err != nil {
		return err
	}
	return r.write("leasehold-"+r.version+".cdx.json", out.Bytes())
}
