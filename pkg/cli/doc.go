// Package cli has what the commands of a node and of a cluster share: how they run, print and ask,
// the forms of their JSON, and what doctor prints as a repair.
package cli
