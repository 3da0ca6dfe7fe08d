// Package install installs and removes the plugin in a node's directory of CNI plugins, under its
// own name or in host-local's place. Its callers have the host's root directory, so that paths and
// symbolic links are resolved as on the host, also if they lead out of the directory of plugins
// (k3s) or change with an upgrade (snap).
package install
