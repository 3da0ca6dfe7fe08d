// Package simulated measures the manager with a real control plane and many nodes, which are only
// objects. See docs/scale.md.
package simulated
