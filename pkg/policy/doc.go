// Package policy parses what users write: annotations, limits of namespaces, policies of the ipam
// section. It validates them, and does not apply them.
package policy
