package reservations

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// goneNodes deletes the reservations of nodes that no longer exist. The agents of these nodes
// cannot delete them. A node that is created again has another UID, and its agent publishes what it
// has: the absence of a node does not release an address (docs/design.md, "Reservations"). It runs
// in the leader.
type goneNodes struct {
	set    *Set
	nodes  *control.Nodes
	client client.Client
	live   client.Reader // reads from the API server
	log    logr.Logger
}

// start deletes reservations at intervals until ctx is done.
func (g *goneNodes) start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, goneNodesTimeout)
		defer cancel()
		if err := g.deleteAll(ctx); err != nil {
			g.log.Error(err, "deleting the reservations of nodes that are gone failed")
		}
	}, checkInterval)
	return nil
}

// deleteAll deletes the reservations of nodes that are gone. After an error it continues, and it
// returns all errors.
func (g *goneNodes) deleteAll(ctx context.Context) (err error) {
	gone := map[types.UID]bool{}
	for _, r := range g.set.List() {
		uid := types.UID(r.NodeUID)
		if _, known := gone[uid]; !known {
			var e error
			gone[uid], e = g.isGone(ctx, r.Node, uid)
			err = errors.Join(err, e)
		}
		if gone[uid] {
			err = errors.Join(err, g.delete(ctx, r))
		}
	}
	return err
}

func (g *goneNodes) delete(ctx context.Context, r *Reservation) error {
	deleted, err := control.Delete(ctx, g.client, &ipam.IPReservation{ObjectMeta: r.ObjectMeta}, nil)
	if err != nil {
		return fmt.Errorf("deleting %s/%s: %w", r.Namespace, r.Name, err)
	}
	if deleted {
		g.log.Info("deleted the reservation of a node that is gone", "reservation", r.Namespace+"/"+r.Name,
			"node", r.Node)
	}
	return nil
}

// isGone reports whether neither the watch nor the API server shows the node with a name and UID. A
// node with the name and another UID is another node.
func (g *goneNodes) isGone(ctx context.Context, name string, uid types.UID) (bool, error) {
	if n, found := g.nodes.Get(name); found && n.UID == uid || !g.nodes.HasSynced() {
		return false, nil
	}
	var n corev1.Node
	err := g.live.Get(ctx, types.NamespacedName{Name: name}, &n)
	return err == nil && n.UID != uid || apierrors.IsNotFound(err), client.IgnoreNotFound(err)
}
