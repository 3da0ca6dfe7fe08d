// Package must ends a test if a step fails that the test is not about.
package must

import "os"

// T is a test, a benchmark, or a property test.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Read returns the content of a file.
func Read(t T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	Succeed(t, err)
	return content
}

// Succeed ends the test on an error. The last arguments say what it is about.
func Succeed(t T, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(append(about, err)...)
	}
}
