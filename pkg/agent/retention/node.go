package retention

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

// Node is what the tasks share that use the API server.
type Node struct {
	Service *maintain.Service
	Changes *daemon.Signal // sent when the store has changed
	Log     *slog.Logger
	Name    string // of the node in the API
	Clients *kube.Clients
	Pods    *Pods
	Limits  *Limits
}

// NewNode returns a Node. Pods and Limits have to be run.
func NewNode(service *maintain.Service, changes *daemon.Signal, log *slog.Logger, name string,
	clients *kube.Clients) *Node {
	return &Node{service, changes, log, name, clients, NewPods(clients.Core, name), NewLimits(clients.Core)}
}

// Retained returns the pods that request retention with a valid window, and need a sandbox with
// their own network, sorted by name.
func (n *Node) Retained() []Pod {
	views, _ := n.Pods.Views()
	byName := func(a, b Pod) int { return cmp.Compare(a.Name.String(), b.Name.String()) }
	isOther := func(p Pod) bool { return !p.Expected || p.Window == 0 }
	return slices.DeleteFunc(slices.SortedFunc(maps.Values(views), byName), isOther)
}
