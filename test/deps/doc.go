// Package deps holds the import rules of the module as a test. It has no code
// of its own.
package deps
