package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// plantedEnv is the environment variable that chooses the fault of a test binary.
const plantedEnv = "LEASEHOLD_PLANTED_FAULT"

// chooser is added to each package with faults. Tests start programs with an environment of their
// own, so the linker chooses the fault of a program.
const chooser = `package %s

import (
	"cmp"
	"os"
)

var linkedFault string

var plantedFault = cmp.Or(linkedFault, os.Getenv(%q))
`

// linked returns the linker's flag that chooses a fault.
func (f *fault) linked() string {
	if f.id == "" {
		return ""
	}
	build, _ := debug.ReadBuildInfo()
	return fmt.Sprintf("-X=%s/%s.linkedFault=%s", build.Main.Path, f.pkg, f.id)
}

// plant numbers the faults, and writes an overlay that replaces files by those with faults.
func plant(dir string, packages []*pkgSites, faults []*fault) (overlay string, err error) {
	inFile := map[string][]*fault{}
	for i, f := range faults {
		f.id = strconv.Itoa(i + 1)
		inFile[f.file] = append(inFile[f.file], f)
	}
	texts, replace := map[string]string{}, map[string]string{}
	for _, p := range packages {
		for file, parsed := range p.files {
			if faults := inFile[file]; faults != nil {
				texts[file] = withFaults(string(p.sources[file]), faults)
				texts[filepath.Join(p.dir, "planted_fault.go")] = fmt.Sprintf(chooser, parsed.Name.Name, plantedEnv)
			}
		}
	}
	for file, text := range texts {
		original, err := filepath.Abs(file)
		changed := filepath.Join(dir, "src", file)
		replace[original] = changed
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(changed), 0o755),
			os.WriteFile(changed, []byte(text), 0o644)); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, errors.Join(err, os.WriteFile(overlay, b, 0o644))
}

// withFaults returns a source with a copy of its function for each fault, which the function calls
// if the fault is chosen.
func withFaults(source string, faults []*fault) string {
	slices.SortStableFunc(faults, func(a, b *fault) int { return a.in.body.from - b.in.body.from })
	var out, copies strings.Builder
	last := 0
	for _, f := range faults {
		body, name := f.in.body, "faulty"+f.id
		fmt.Fprintf(&out, "%s if plantedFault == %q { %s }\n", source[last:body.from+1], f.id,
			strings.ReplaceAll(f.in.call, "NAME", name))
		fmt.Fprintf(&copies, "\n%s %s%s%s\n", strings.ReplaceAll(f.in.header, "NAME", name),
			source[body.from:f.from], f.by, source[f.to:body.to])
		last = body.from + 1
	}
	return out.String() + source[last:] + copies.String()
}
