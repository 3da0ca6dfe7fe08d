package lint

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// elsewhere are the commands that no script of test/script runs, by the test that runs them and a
// text in it.
var elsewhere = map[string]struct{ file, text string }{
	"kubectl leasehold install": {"test/e2e/scenarios/install_test.go", `t.leasehold("install", "--yes")`},
	"kubectl leasehold install --yes": {"test/e2e/scenarios/install_test.go",
		`t.follow(page{"docs/recipes/kubeadm.md"`},
	"kubectl leasehold uninstall": {"test/e2e/scenarios/install_test.go",
		`s.leasehold("uninstall", "--crds", "--yes")`},
}

// TestDocumentedCommandsRun checks that tests run the commands of the documents: leasectl's, in
// blocks and inline, with the same flags in a script of test/script, unless they are in elsewhere;
// those of make are targets. Scenarios run those of kubectl and helm.
func TestDocumentedCommandsRun(t *testing.T) {
	for c, e := range elsewhere {
		if !strings.Contains(string(tracked(t, e.file)[0].content), e.text) {
			t.Errorf("%s, which runs %q, does not contain %q any more", e.file, c, e.text)
		}
	}
	targets := string(tracked(t, "Makefile")[0].content)
	ran := scriptCommands(t)
	for _, f := range tracked(t, "*.md") {
		if slices.Contains([]string{"CHANGELOG.md", "docs/commands.md"}, f.name) {
			continue
		}
		for _, c := range documented(string(f.content)) {
			_, covered := elsewhere[c]
			wanted := parseLeasectl(c)
			if target, isMake := strings.CutPrefix(c, "make "); isMake {
				covered = strings.Contains(targets, "\n"+strings.Fields(target)[0]+":")
			}
			if !covered && !slices.ContainsFunc(ran, func(r invocation) bool { return r.covers(wanted) }) {
				t.Errorf("%s: no test runs %q; run it in a script of test/script, or list it in elsewhere", f.name, c)
			}
		}
	}
}

var (
	blockCommand  = regexp.MustCompile(`^ {4,}(?:\$ )?((?:leasectl|kubectl leasehold|make) .*)$`)
	inlineCommand = regexp.MustCompile("`((?:leasectl|kubectl leasehold|make) [^`]*)`")
	comment       = regexp.MustCompile(` +#.*$`)
)

// documented returns the commands of leasectl and make in a document: the lines of blocks, and
// inline.
func documented(text string) (out []string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		found := inlineCommand.FindAllStringSubmatch(l, -1)
		if m := blockCommand.FindStringSubmatch(l); m != nil {
			found = append(found, m)
		}
		for _, m := range found {
			c := strings.TrimSuffix(strings.TrimSpace(comment.ReplaceAllString(m[1], "")), " |")
			out = append(out, strings.Join(strings.Fields(c), " "))
		}
	}
	return out
}

// invocation is a command line of leasectl.
type invocation struct {
	isPlugin bool // kubectl leasehold
	verb     string
	flags    []string // names
}

// verbs are the commands of leasectl, on nodes and as kubectl's plugin.
var verbs = []string{"bundle", "check", "doctor", "gc", "history", "install", "list", "pools", "recover", "release",
	"reserve", "uninstall"}

func parseLeasectl(command string) (out invocation) {
	out.isPlugin = strings.HasPrefix(command, "kubectl")
	for _, w := range strings.Fields(command) {
		switch {
		case strings.HasPrefix(w, "-"):
			name, _, _ := strings.Cut(w, "=")
			out.flags = append(out.flags, name)
		case out.verb == "" && slices.Contains(verbs, w):
			out.verb = w
		}
	}
	return out
}

// covers reports whether a test that runs r shows that other works.
func (r invocation) covers(other invocation) bool {
	lacks := func(flag string) bool { return !slices.Contains(r.flags, flag) }
	return r.isPlugin == other.isPlugin && r.verb == other.verb && !slices.ContainsFunc(other.flags, lacks)
}

// scriptCommands returns the command lines of leasectl in the scripts of test/script.
func scriptCommands(t *testing.T) (out []invocation) {
	command := regexp.MustCompile(`\b(leasectl|kubectl-leasehold) [^;|&'")]*`)
	for _, f := range tracked(t, "test/script/testdata/*.txtar") {
		script, _, _ := strings.Cut(string(f.content), "\n-- ")
		for l := range strings.Lines(script) {
			if strings.HasPrefix(l, "#") {
				continue
			}
			for _, c := range command.FindAllString(l, -1) {
				out = append(out, parseLeasectl(strings.Replace(c, "kubectl-", "kubectl ", 1)))
			}
		}
	}
	return out
}
