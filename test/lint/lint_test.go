package lint

import (
	"bytes"
	"go/scanner"
	"go/token"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/leasehold-cni/leasehold/test/must"
)

const (
	maxColumns = 120 // of a line of Go, a tab counts as 4
	maxComment = 100 // of a line that is a comment only
	maxSubject = 72  // of a commit, in characters
)

// firstCommit is the commit after which subjects are checked, if there is no tag yet. Some of the
// earlier subjects are longer.
const firstCommit = "f9d38368930bf6328a6713a51b45931f0e66a812"

// git returns the output of a git command in the root of the repository.
func git(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", "../.."}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// file is a file of the repository.
type file struct {
	name    string // relative to the root
	content []byte
}

// tracked returns the files that are tracked, or not ignored, and match a pattern of git.
func tracked(t *testing.T, patterns ...string) []file {
	t.Helper()
	args := append([]string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, patterns...)
	var out []file
	for name := range strings.SplitSeq(strings.TrimRight(git(t, args...), "\x00"), "\x00") {
		path := filepath.Join("../..", name)
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			continue // removed in the work tree, or a link
		}
		b, err := os.ReadFile(path)
		must.Succeed(t, err)
		out = append(out, file{name, b})
	}
	if len(out) == 0 {
		t.Fatalf("no file matches %q", patterns)
	}
	return out
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// goFiles returns the Go files that are written by hand.
func goFiles(t *testing.T) []file {
	t.Helper()
	var out []file
	for _, f := range tracked(t, "*.go") {
		if !generated.Match(f.content) {
			out = append(out, f)
		}
	}
	return out
}

// columns returns the width of a line.
func columns(line string) int { return utf8.RuneCountInString(line) + 3*strings.Count(line, "\t") }

// rawStrings returns the lines that are inside of a raw string literal, whose width is that of
// data.
func rawStrings(f file) map[int]bool {
	files := token.NewFileSet()
	var s scanner.Scanner
	s.Init(files.AddFile(f.name, -1, len(f.content)), f.content, nil, 0)
	inside := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return inside
		}
		if tok == token.STRING && lit[0] == '`' {
			first := files.Position(pos).Line
			for i := range strings.Count(lit, "\n") {
				inside[first+1+i] = true
			}
		}
	}
}

// limitOf returns how many columns a line may have. The text of comments is wrapped earlier, except
// preformatted lines, markers of generators, and single words such as links.
func limitOf(line string) int {
	text, comment := strings.CutPrefix(strings.TrimSpace(line), "// ")
	switch {
	case !comment:
		return maxColumns
	case strings.HasPrefix(text, "+"), !strings.Contains(text, " "):
		return math.MaxInt
	}
	return maxComment
}

func TestColumns(t *testing.T) {
	for _, f := range goFiles(t) {
		raw := rawStrings(f)
		for i, line := range strings.Split(string(f.content), "\n") {
			if n, limit := columns(line), limitOf(line); n > limit && !raw[i+1] {
				t.Errorf("%s:%d has %d columns; want at most %d", f.name, i+1, n, limit)
			}
		}
	}
}

// TestNamedTestsExist checks the names of tests and scripts in the docs.
func TestNamedTestsExist(t *testing.T) {
	defined := map[string]bool{}
	definition := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w*)\(`)
	for _, f := range tracked(t, "*_test.go") {
		for _, m := range definition.FindAllSubmatch(f.content, -1) {
			defined[string(m[1])] = true
		}
	}
	for _, f := range tracked(t, "*.txtar") {
		defined[filepath.Base(f.name)] = true
	}
	name := regexp.MustCompile(`\b(?:(?:Test|Fuzz|Benchmark)[A-Z]\w+|[\w-]+\.txtar)`)
	for _, f := range tracked(t, "*.md") {
		for i, line := range strings.Split(string(f.content), "\n") {
			for _, m := range name.FindAllString(line, -1) {
				if !defined[m] {
					t.Errorf("%s:%d: there is no test %s", f.name, i+1, m)
				}
			}
		}
	}
}

// TestFindingsAreDocumented checks that docs/troubleshooting.md has each reason of a finding of
// leasectl doctor; TestReference writes those of the states of a network. TestRepairsDoNoHarm
// (pkg/cli) has each reason found.
func TestFindingsAreDocumented(t *testing.T) {
	documented := string(tracked(t, "docs/troubleshooting.md")[0].content)
	reason := regexp.MustCompile(`\bReason(?:: |, f\.What = | = )"([A-Z]\w+)"`)
	found := 0
	for _, f := range tracked(t, "pkg/cli/*.go") {
		for _, m := range reason.FindAllStringSubmatch(string(f.content), -1) {
			if strings.HasSuffix(f.name, "_test.go") {
				continue
			}
			if found++; !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(documented) {
				t.Errorf("%s has the reason %s, which docs/troubleshooting.md lacks", f.name, m[1])
			}
		}
	}
	if found < 13 {
		t.Errorf("found %d reasons, want more", found)
	}
}

// TestLinks checks the links between documents, and the headings that other files name.
func TestLinks(t *testing.T) {
	anchors := map[string]map[string]bool{}
	for _, f := range tracked(t, "*.md") {
		anchors[f.name] = headings(string(f.content))
	}
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	elsewhere := regexp.MustCompile(`\b(docs/[a-z]+\.md)#([a-z0-9-]+)`)
	quoted := regexp.MustCompile(`\b(docs/[a-z]+\.md), \\?"([^"\\]+)\\?"`)
	wrapped := regexp.MustCompile(`\s+(//|#)?\s*`)
	for _, f := range tracked(t) {
		if bytes.ContainsRune(f.content, 0) {
			continue
		}
		for _, m := range elsewhere.FindAllStringSubmatch(string(f.content), -1) {
			if !anchors[m[1]][m[2]] {
				t.Errorf("%s: %s has no heading #%s", f.name, m[1], m[2])
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(wrapped.ReplaceAllString(string(f.content), " "), -1) {
			if !anchors[m[1]][anchor(m[2])] {
				t.Errorf("%s: %s has no heading %q", f.name, m[1], m[2])
			}
		}
		if filepath.Ext(f.name) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(f.content), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, ":") {
				continue
			}
			to := f.name
			if path != "" {
				to = filepath.Join(filepath.Dir(f.name), path)
			}
			if _, err := os.Stat(filepath.Join("../..", to)); err != nil {
				t.Errorf("%s: there is no %s", f.name, m[1])
			} else if anchor != "" && !anchors[to][anchor] {
				t.Errorf("%s: %s has no heading #%s", f.name, to, anchor)
			}
		}
	}
}

// headings returns the anchors of the headings of a document.
func headings(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		out[anchor(m[1])] = true
	}
	return out
}

var punctuation = regexp.MustCompile(`[^\w -]`)

// anchor returns the anchor of a heading.
func anchor(heading string) string {
	return strings.ReplaceAll(punctuation.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// TestMetricsExist checks that documents, alerts and the dashboard name only metrics of
// docs/reference.md, into which TestReference writes those of the code.
func TestMetricsExist(t *testing.T) {
	reference := string(tracked(t, "docs/reference.md")[0].content)
	series := regexp.MustCompile(`\bleasehold_[a-z_]+[a-z]`)
	for _, f := range tracked(t, "*.md", "daemonset/monitoring/*.yaml", "daemonset/monitoring/*.json") {
		for _, name := range series.FindAllString(string(f.content), -1) {
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "") // of a histogram
			if !regexp.MustCompile("\\| `(" + name + "|" + base + ")[`{]").MatchString(reference) {
				t.Errorf("%s names the metric %s, which does not exist", f.name, name)
			}
		}
	}
}

// TestSubjects checks the subjects of commits since the last tag.
func TestSubjects(t *testing.T) {
	base := firstCommit
	if tags := strings.Fields(git(t, "tag", "--merged", "HEAD", "--sort=-creatordate", "--list", "v*")); len(tags) > 0 {
		base = tags[0]
	}
	subject := regexp.MustCompile(`^[a-z0-9][a-z0-9/._-]*(, [a-z0-9][a-z0-9/._-]*)*: [a-z]`)
	commits := git(t, "log", "--no-merges", "--format=%h %s", base+"..HEAD")
	for commit := range strings.Lines(commits) {
		id, s, _ := strings.Cut(strings.TrimSpace(commit), " ")
		if n := utf8.RuneCountInString(s); n > maxSubject {
			t.Errorf("commit %s: the subject has %d characters; want at most %d", id, n, maxSubject)
		}
		if !subject.MatchString(s) {
			t.Errorf(`commit %s: %q; want a subject such as "ipam: apply queued DELs"`, id, s)
		}
	}
}
