// Package policy turns the words that users write - the pod annotation, and
// the policies of the ipam section - into types that cannot be wrong. It
// decides nothing.
package policy
