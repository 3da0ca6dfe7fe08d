// Package simulated tests the manager and measures the load of an API server with a real control
// plane and nodes without kubelets. Agents, stores and the plugin's code of ADD and DEL are real,
// and are tasks of one program (directory agents); network namespaces, kubelets and containers are
// simulated. See docs/testbed.md.
package simulated
