// Package fleet simulates nodes: objects in a real API server whose pods have no processes, but real leases. Each node has
// a lease store of its own; for each pod that is bound to it the real plugin is called, with a real network namespace that
// lives as long as the pod, and what the store says is published as the node's agent would.
//
// What is not there: kubelet, container runtime, CNI plugin and image. So the times that a fleet shows are those of the
// control plane and of IPAM.
package fleet
