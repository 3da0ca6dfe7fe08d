package reservations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// nodeGoneAfter is how long a node must be absent before its reservations are deleted. A node may
// be deleted and created again.
const nodeGoneAfter = 2 * time.Minute

// goneNodes deletes the reservations of nodes that no longer exist. The agents of these nodes
// cannot delete them. If such a node appears again, its agent publishes the reservations again: the
// absence of a node does not release an address (docs/design.md, "Reservations"). It runs in the
// leader.
type goneNodes struct {
	set    *Set
	client client.Client // reads nodes from a cache
	live   client.Reader // reads from the API server
	log    logr.Logger
	now    func() time.Time

	missing map[types.UID]time.Time // when each absent node was first missed, by UID
}

func newGoneNodes(set *Set, c client.Client, live client.Reader, log logr.Logger) *goneNodes {
	return &goneNodes{set: set, client: c, live: live, log: log, now: time.Now, missing: map[types.UID]time.Time{}}
}

// start deletes reservations at intervals until ctx is done.
func (g *goneNodes) start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, nodeGoneAfter)
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
	maps.DeleteFunc(g.missing, func(uid types.UID, _ time.Time) bool { _, known := gone[uid]; return !known })
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

// isGone reports whether the node with a name and UID has been absent for nodeGoneAfter. A node
// with the name and another UID is another node. Before isGone reports true, it reads the node from
// the API server.
func (g *goneNodes) isGone(ctx context.Context, name string, uid types.UID) (bool, error) {
	exists, err := hasNode(ctx, g.client, name, uid)
	if exists || err != nil {
		delete(g.missing, uid)
		return false, err
	}
	first, isMissing := g.missing[uid]
	if !isMissing {
		g.missing[uid] = g.now()
	}
	if !isMissing || g.now().Sub(first) < nodeGoneAfter {
		return false, nil
	}
	exists, err = hasNode(ctx, g.live, name, uid)
	return !exists && err == nil, err
}

func hasNode(ctx context.Context, reader client.Reader, name string, uid types.UID) (bool, error) {
	var n corev1.Node
	err := reader.Get(ctx, types.NamespacedName{Name: name}, &n)
	return err == nil && n.UID == uid, client.IgnoreNotFound(err)
}
