package pin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

const (
	sweepInterval = 30 * time.Second
	// nodeGoneAfter is how long a node must be absent before its reservations are deleted. A node
	// may be deleted and created again.
	nodeGoneAfter = 2 * time.Minute
	// unseenGatesInterval is the interval of the search for gates that no nominator sees, because
	// the pods have lost the label of retained pods.
	unseenGatesInterval = time.Minute
)

// A sweeper deletes the reservations of nodes that no longer exist. The agents of these nodes
// cannot delete them. If such a node appears again, its agent publishes the reservations again: the
// absence of a node does not release an address (docs/design.md, "Reservations"). The sweeper runs
// in the leader.
type sweeper struct {
	cluster *cluster
	live    client.Reader // reads from the API server, not from a cache
	client  client.Client
	log     logr.Logger

	limit   time.Duration           // time limit of each call
	missing map[types.UID]time.Time // when each absent node was first missed, by UID
	gates   *lifter                 // lifts the gates that no nominator sees
}

// Start deletes reservations and lifts gates at intervals until ctx is done.
func (s *sweeper) Start(ctx context.Context) error {
	var both sync.WaitGroup
	both.Go(func() {
		s.every(ctx, sweepInterval, "sweeping the reservations of nodes that are gone", s.sweep)
	})
	both.Go(func() {
		s.every(ctx, unseenGatesInterval, "lifting gates that the nominators do not see",
			func(ctx context.Context) error {
				_, err := s.gates.round(ctx, s.cluster.now())
				return err
			})
	})
	both.Wait()
	return nil
}

// every runs a task at an interval until ctx is done. It logs errors with the message what.
func (s *sweeper) every(ctx context.Context, interval time.Duration, what string, task func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := task(ctx); err != nil {
				s.log.Error(err, what)
			}
		}
	}
}

// sweep deletes the reservations of nodes that are gone. After an error it continues, and it
// returns all errors.
func (s *sweeper) sweep(ctx context.Context) error {
	if !s.cluster.Synced() {
		return nil
	}
	var problems []error
	seen := map[types.UID]bool{}
	for _, r := range s.cluster.reservations.List() {
		uid := types.UID(r.NodeUID)
		gone, known := seen[uid]
		if !known {
			var err error
			if gone, err = s.gone(ctx, r.Node, uid); err != nil {
				problems = append(problems, err)
			}
			seen[uid] = gone
		}
		if !gone {
			continue
		}
		switch err := s.delete(ctx, r); {
		case err == nil:
			s.log.Info("deleted the reservation of a node that is gone", "reservation", r.Namespace+"/"+r.Name,
				"node", r.Node)
		case unexpected(err) != nil:
			problems = append(problems, fmt.Errorf("deleting %s/%s: %w", r.Namespace, r.Name, err))
		}
	}
	for uid := range s.missing {
		if _, known := seen[uid]; !known {
			delete(s.missing, uid)
		}
	}
	return errors.Join(problems...)
}

func (s *sweeper) delete(ctx context.Context, r *reservation) error {
	call, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	return s.client.Delete(call,
		&ipam.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}},
		client.Preconditions{UID: &r.UID})
}

// gone reports whether the node with a name and UID has been absent for nodeGoneAfter. A node with
// the name and another UID is another node. Before gone reports true, it reads the node from the
// API server.
func (s *sweeper) gone(ctx context.Context, name string, uid types.UID) (bool, error) {
	node, err := s.cluster.node(ctx, name)
	if err != nil {
		return false, err
	}
	if node != nil && node.UID == uid {
		delete(s.missing, uid)
		return false, nil
	}
	first, found := s.missing[uid]
	if !found {
		s.missing[uid] = s.cluster.now()
		return false, nil
	}
	if s.cluster.now().Sub(first) < nodeGoneAfter {
		return false, nil
	}
	var live corev1.Node
	call, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	err = s.live.Get(call, types.NamespacedName{Name: name}, &live)
	if client.IgnoreNotFound(err) != nil {
		return false, err
	}
	return err != nil || live.UID != uid, nil
}
