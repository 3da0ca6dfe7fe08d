// Package fleet simulates nodes: objects in a real API server whose pods have no processes, but
// real leases. Each node has its own lease store. For each pod that is scheduled to a node, the
// real IPAM plugin is called with a real network namespace, which exists as long as the pod, and
// the tasks of the node agent publish the leases.
//
// There is no kubelet, container runtime, CNI plugin or image, so that measured times are those of
// the control plane and of IPAM.
package fleet
