// Package pinbench measures the pin: how surely and how fast recreated pods return to the node that
// has their address, where everything the scheduler scores by speaks against that node; and what
// the manager costs in a big cluster. Control plane, plugin and manager are real, nodes are a
// fleet.
//
// It measures and judges nothing: what it prints beside a goal is for people. Only what shows the
// manager to be broken, a pod that a pin keeps from starting or a nomination that did not bring its
// pod back, makes Recreations return false.
package pinbench
