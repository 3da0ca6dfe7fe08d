// Conformance prints how test suites of other projects end with host-local and with leasehold, from
// the JSON reports of Ginkgo.
//
// Usage:
//
//	conformance directory argued-file suite...
//
// The reports of a suite are host-local/<suite>.json and leasehold/<suite>.json in the directory.
// Every spec has to end in one of these ways, otherwise the exit status is 1:
//
//   - It passes with both.
//   - It fails with both because the kernel lacks a feature.
//   - It is in the file of argued specs, with the reason, and does not pass with both.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: conformance directory argued-file suite...")
		os.Exit(2)
	}
	ok, err := run(os.Stdout, os.Args[1], os.Args[2], os.Args[3:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// run prints the table of all suites and what is to be said of single specs. It reports whether
// every spec ended as it has to.
func run(w io.Writer, dir, arguedFile string, suites []string) (ok bool, err error) {
	argued, err := readArgued(arguedFile)
	if err != nil {
		return false, err
	}
	tab := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(tab, "| suite\t| specs\t| passed with host-local\t| passed with leasehold\t"+
		"| kernel lacks a feature\t| differ\t|")
	fmt.Fprintln(tab, "|---\t|---\t|---\t|---\t|---\t|---\t|")
	var notes []string
	ok = true
	for _, suite := range suites {
		upstream, err := readReport(filepath.Join(dir, "host-local", suite+".json"))
		if err != nil {
			return false, err
		}
		ours, err := readReport(filepath.Join(dir, "leasehold", suite+".json"))
		if err != nil {
			return false, err
		}
		all := maps.Clone(upstream)
		maps.Copy(all, ours)
		var passedUpstream, passed, unsupported, differ int
		for _, name := range slices.Sorted(maps.Keys(all)) {
			u, o := upstream[name], ours[name]
			note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
			passedUpstream, passed = passedUpstream+count(u.passed), passed+count(o.passed)
			differ += count(u.passed != o.passed)
			reason := argued[suite+"\t"+name]
			switch {
			case u.passed && o.passed && reason == "":
			case u.passed && o.passed:
				ok = false
				note("%s: %q passes with both; remove it from the argued specs", suite, name)
			case !u.passed && !o.passed && lacksFeature(u.failure):
				unsupported++
			case reason != "":
				note("%s: %q: %s", suite, name, reason)
			default:
				ok = false
				note("FAILED: %s: %q\n  host-local: %s\n  leasehold:  %s", suite, name, u, o)
			}
		}
		fmt.Fprintf(tab, "| %s\t| %d\t| %d\t| %d\t| %d\t| %d\t|\n", suite, len(upstream), passedUpstream, passed,
			unsupported, differ)
	}
	if err := tab.Flush(); err != nil {
		return false, err
	}
	for _, n := range notes {
		fmt.Fprintln(w, n)
	}
	return ok, nil
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// A spec is one spec of a report.
type spec struct {
	passed  bool
	failure string // why it did not pass
}

// readReport returns the specs of a report by name, without those that were not chosen. Of several
// specs with one name the later ones have a number.
func readReport(path string) (map[string]spec, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeType, LeafNodeText, State string
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(content, &reports); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	specs := map[string]spec{}
	for _, r := range reports {
		for _, s := range r.SpecReports {
			setup := s.LeafNodeType != "It"
			if s.State == "skipped" && s.Failure.Message == "" || setup && s.State == "passed" {
				continue
			}
			base := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
			if setup {
				base = s.LeafNodeType
			}
			name := base
			for n := 2; ; n++ {
				if _, found := specs[name]; !found {
					break
				}
				name = fmt.Sprintf("%s #%d", base, n)
			}
			specs[name] = spec{passed: s.State == "passed", failure: s.State + ": " + s.Failure.Message}
		}
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("%s: no spec was run", path)
	}
	return specs, nil
}

// readArgued returns the reasons of the argued specs by suite and name. Each line has the suite,
// the name of the spec and the reason, separated by tabs. Empty lines and those that begin with #
// are comments.
func readArgued(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	argued := map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		last := strings.LastIndexByte(line, '\t')
		if strings.Count(line, "\t") != 2 || last == len(line)-1 {
			return nil, fmt.Errorf("%s: %q: want suite, spec and reason, separated by tabs", path, line)
		}
		argued[line[:last]] = line[last+1:]
	}
	return argued, err
}

// lacksFeature reports whether a spec failed because the kernel does not have a kind of interface,
// or a feature of it.
func lacksFeature(failure string) bool { return strings.Contains(failure, "operation not supported") }

func (s spec) String() string {
	switch {
	case s.passed:
		return "passed"
	case s.failure == "":
		return "was not run"
	}
	return strings.Join(strings.Fields(s.failure), " ")
}
