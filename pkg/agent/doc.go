// Package agent implements the node agent: a set of tasks that run on a node all the time. The
// plugin works correctly without it. The agent ends holds when their time is over, keeps a copy of
// the store, and serves metrics.
//
// Each task is level-triggered: it reads the current state instead of relying on earlier events.
// Nothing in this package depends on Kubernetes; the tasks that do are in pkg/kube.
package agent
