// Package agent implements the node agent: a set of tasks that run on a node all the time. The
// plugin assigns and releases addresses correctly without the agent. The agent ends holds
// (addresses that are reserved for pods that are away) when their time is over, releases the
// addresses of sandboxes that died without a DEL, and serves metrics.
//
// Each task is level-triggered: it reads the current state and does not rely on earlier events.
// Nothing in this package depends on Kubernetes. The tasks that do are in the subdirectories.
package agent
