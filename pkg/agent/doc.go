// Package agent has the tasks of the node agent that need no Kubernetes. Those that do are packages
// below this one. The plugin assigns and releases addresses correctly without the agent. The agent
// ends holds (addresses that are reserved for pods that are away) when their time is over, releases
// the addresses of sandboxes that died without a DEL, and serves metrics.
//
// Each task is level-triggered: it reads the current state and does not rely on earlier events.
package agent
