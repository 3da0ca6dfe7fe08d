package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// report is a report of three specs, of which two have the same name.
const report = `[{"SpecReports":[
	{"LeafNodeType":"BeforeSuite","State":"passed"},
	{"ContainerHierarchyTexts":["bridge"],"LeafNodeType":"It","LeafNodeText":"adds","State":"%s",
	 "Failure":{"Message":"%s"}},
	{"ContainerHierarchyTexts":["bridge"],"LeafNodeType":"It","LeafNodeText":"adds","State":"passed"},
	{"ContainerHierarchyTexts":["bridge"],"LeafNodeType":"It","LeafNodeText":"deletes","State":"passed"},
	{"ContainerHierarchyTexts":["bridge"],"LeafNodeType":"It","LeafNodeText":"not chosen","State":"skipped"}
]}]`

func TestRun(t *testing.T) {
	const broken = "x: broken"
	const unsupported = "dummy0: operation not supported"
	const failed = `FAILED: bridge: "bridge adds"`
	tests := []struct {
		name           string
		upstream, ours string // failure of one spec
		argued         string
		ok             bool
		row            string
		note           string
	}{
		{"all pass", "", "", "", true, "| bridge | 3 | 3 | 3 | 0 | 0 |", ""},
		{"one fails with leasehold", "", broken, "", false, "| bridge | 3 | 3 | 2 | 0 | 1 |", failed},
		{"one fails with leasehold as a kernel could", "", unsupported, "", false, "| bridge | 3 | 3 | 2 | 0 | 1 |",
			failed},
		{"argued", "", broken, "bridge\tbridge adds\tbecause", true, "| bridge | 3 | 3 | 2 | 0 | 1 |", "because"},
		{"argued without need", "", "", "bridge\tbridge adds\tbecause", false, "| bridge | 3 | 3 | 3 | 0 | 0 |",
			"remove it"},
		{"the kernel lacks a feature", unsupported, unsupported, "", true, "| bridge | 3 | 2 | 2 | 1 | 0 |", ""},
		{"one fails with both", broken, broken, "", false, "| bridge | 3 | 2 | 2 | 0 | 0 |", "FAILED"},
		{"one passes with leasehold alone", broken, "", "", false, "| bridge | 3 | 2 | 3 | 0 | 1 |", "FAILED"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "host-local/bridge.json"), reportOf(tt.upstream))
			write(t, filepath.Join(dir, "leasehold/bridge.json"), reportOf(tt.ours))
			argued := filepath.Join(dir, "argued")
			write(t, argued, "# comment\n\n"+tt.argued+"\n")
			var out bytes.Buffer
			ok, err := run(&out, dir, argued, []string{"bridge"})
			if err != nil || ok != tt.ok {
				t.Errorf("%t, %v, want %t\n%s", ok, err, tt.ok, &out)
			}
			text := strings.Join(strings.Fields(out.String()), " ")
			if !strings.Contains(text, tt.row) || !strings.Contains(text, tt.note) {
				t.Errorf("want %q and %q in\n%s", tt.row, tt.note, &out)
			}
		})
	}
}

// A suite that ran nothing, or has no report, is an error.
func TestRunWithoutSpecs(t *testing.T) {
	dir := t.TempDir()
	argued := filepath.Join(dir, "argued")
	write(t, argued, "")
	for _, content := range []string{"", `[{"SpecReports":[]}]`} {
		if content != "" {
			write(t, filepath.Join(dir, "host-local/ptp.json"), content)
			write(t, filepath.Join(dir, "leasehold/ptp.json"), content)
		}
		if _, err := run(&bytes.Buffer{}, dir, argued, []string{"ptp"}); err == nil {
			t.Errorf("no error with the report %q", content)
		}
	}
}

func reportOf(failure string) string {
	state := "passed"
	if failure != "" {
		state = "failed"
	}
	return fmt.Sprintf(report, state, failure)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o666); err != nil {
		t.Fatal(err)
	}
}
