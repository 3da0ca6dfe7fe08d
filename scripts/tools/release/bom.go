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
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBOM writes the bill of materials of the programs, in CycloneDX's format: the modules, and of
// each program which of them it links, from the build information that is in the program.
func (r release) writeBOM(work string, modules []module) error {
	var components []cdx.Component
	var dependencies []cdx.Dependency
	known, sums := map[string]bool{}, map[string]string{}
	for _, m := range modules {
		known[m.ref()] = true
	}
	for _, arch := range r.archs {
		for _, program := range r.programs {
			path := binary(work, arch, program)
			info, err := buildinfo.ReadFile(path)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			purl := fmt.Sprintf("pkg:golang/%s@%s?goos=linux&goarch=%s", info.Path, r.version, arch)
			components = append(components, component(cdx.ComponentTypeApplication, purl, filepath.Base(path),
				r.version, sum[:], "Apache-2.0"))
			on := []string{module{Path: "std", Version: goVersion()}.ref()}
			for _, d := range info.Deps {
				m := module{Path: d.Path, Version: d.Version}
				if !known[m.ref()] || d.Replace != nil {
					return fmt.Errorf("%s links %s@%s, whose licence was not checked", path, d.Path, d.Version)
				}
				on, sums[m.ref()] = append(on, m.ref()), d.Sum
			}
			dependencies = append(dependencies, cdx.Dependency{Ref: purl, Dependencies: &on})
		}
	}
	for _, m := range modules {
		// The hash of a module is that of its files' names and hashes. The standard library has
		// none.
		hash, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(sums[m.ref()], "h1:"))
		components = append(components, component(cdx.ComponentTypeLibrary, m.ref(), m.Path, m.Version, hash,
			m.licences...))
	}
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

// ref is the reference of a module in a bill of materials.
func (m module) ref() string { return "pkg:golang/" + m.Path + "@" + m.Version }

// component returns a component of a bill of materials.
func component(kind cdx.ComponentType, purl, name, version string, hash []byte, licences ...string) cdx.Component {
	c := cdx.Component{Type: kind, BOMRef: purl, Name: name, Version: version, PackageURL: purl,
		Licenses: &cdx.Licenses{}}
	for _, id := range licences {
		*c.Licenses = append(*c.Licenses, cdx.LicenseChoice{License: &cdx.License{ID: id}})
	}
	if len(hash) > 0 {
		c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(hash)}}
	}
	return c
}
