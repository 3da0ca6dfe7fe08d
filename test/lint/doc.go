// Package lint checks the rules of CONTRIBUTING.md that gofmt, vet and staticcheck do not know: the
// width of lines, the words of comments, the names of tests in the docs, and the subjects of
// commits.
package lint
