// Package must ends tests on errors that are not what they are about.
package must

// Succeed ends the test on an error.
func Succeed(t interface {
	Helper()
	Fatal(args ...any)
}, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
