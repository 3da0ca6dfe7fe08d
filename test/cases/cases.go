// Package cases reads the cases of a test from a file, in which texts need no quoting. A case
// begins with a line "== name". Then come the lines that are given, and those that are wanted,
// which begin with "-> ". Lines that begin with "#" are comments.
package cases

import (
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/must"
)

// A Case has no name if it is of the lines before the first case.
type Case struct {
	Name        string
	Given, Want []string
	Lines       []string // both, in their order
}

// Read returns the cases of a file.
func Read(t testing.TB, file string) (all []Case) {
	t.Helper()
	content := must.Read(t, file)
	for line := range strings.Lines("== \n" + string(content)) {
		line = strings.TrimSuffix(line, "\n")
		if name, isCase := strings.CutPrefix(line, "== "); isCase {
			all = append(all, Case{Name: name})
			continue
		}
		c := &all[len(all)-1]
		if line != "" && !strings.HasPrefix(line, "#") {
			c.Lines = append(c.Lines, line)
		}
		if want, found := strings.CutPrefix(line, "-> "); found {
			c.Want = append(c.Want, want)
		} else if line != "" && !strings.HasPrefix(line, "#") {
			c.Given = append(c.Given, line)
		}
	}
	if len(all) < 2 {
		t.Fatalf("%s has no cases", file)
	}
	return all
}

// Words calls the function of each word, which is a key, or key=value.
func Words(t testing.TB, words []string, do map[string]func(value string)) {
	t.Helper()
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		if do[key] == nil {
			t.Fatalf("unknown word %q", w)
		}
		do[key](value)
	}
}
