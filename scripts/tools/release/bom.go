package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBOM writes the bill of materials of the programs, in CycloneDX's format: the modules, and of
// each program which of them it links.
func (r release) writeBOM(modules []*module) error {
	var components []cdx.Component
	var dependencies []cdx.Dependency
	for _, arch := range r.archs {
		for _, program := range r.programs() {
			data, err := os.ReadFile(r.binary(arch, program))
			if err != nil {
				return err
			}
			sum := sha256.Sum256(data)
			purl := fmt.Sprintf("pkg:golang/github.com/leasehold-cni/leasehold/%s@%s?goos=linux&goarch=%s", program,
				r.version, arch)
			components = append(components, component(cdx.ComponentTypeApplication, purl, path.Base(program),
				r.version, sum[:], "Apache-2.0"))
			var on []string
			for _, m := range modules {
				if slices.Contains(m.linkedBy, arch+" "+program) {
					on = append(on, m.ref())
				}
			}
			dependencies = append(dependencies, cdx.Dependency{Ref: purl, Dependencies: &on})
		}
	}
	for _, m := range modules {
		// The hash of a module is that of its files' names and hashes. The standard library has
		// none.
		hash, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
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
