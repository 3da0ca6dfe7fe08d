// Package policy parses and validates the settings that users write: the pod annotation, the limits
// of namespaces, the policies in the ipam section of a network configuration, and pin modes. It
// does not apply them.
package policy
