// Package must ends a test if a step fails that the test is not about.
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
