// Package cluster implements the commands of the kubectl plugin, which are about a cluster. All of
// them call kubectl.
package cluster
