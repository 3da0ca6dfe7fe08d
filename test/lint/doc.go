// Package lint checks the rules of CONTRIBUTING.md that gofmt, vet and staticcheck do not know: the
// width of lines, the words of comments, the subjects of commits, and whether the documents are
// true: the names of tests, links, commands, and what is generated from the code.
package lint
