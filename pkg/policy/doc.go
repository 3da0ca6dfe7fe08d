// Package policy parses and validates what users write: the pod annotation, the policies of the
// ipam section, and pin modes. It does not apply them.
package policy
