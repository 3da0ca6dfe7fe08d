// Package deps tests the import rules of the module.
package deps
