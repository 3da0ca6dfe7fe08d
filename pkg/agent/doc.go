// Package agent is what runs on a node all the time. The plugin is right
// without it; with it, addresses come back when their time is over, a lost
// store has a copy, and somebody can be asked what is going on (DESIGN 6).
//
// It is a list of tasks over one Node, and each is level-based: a task looks at
// how things stand, and never remembers what it was told. Nothing in here knows
// of Kubernetes; what does stands beside these tasks, in pkg/kube.
package agent
