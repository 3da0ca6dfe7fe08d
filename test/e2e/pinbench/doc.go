// Package pinbench measures the pin: how reliably and how fast recreated pods return to the node
// that has their address, although all scores of the scheduler prefer other nodes; and the cost of
// the manager in a large cluster. Control plane, plugin and manager are real, the nodes are
// simulated.
//
// A missed goal is printed, but it is not an error. Recreations returns false only for faults of
// the manager: a pod that does not start because of the pin, or that does not return in
// the mode require.
package pinbench
