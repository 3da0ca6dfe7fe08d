package pin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

const (
	// endingPatience is for how long after the first failure the patience of a pod does not begin
	// while another pod ends on its node.
	endingPatience = 30 * time.Second
	// preemptionPatience is how long a pod waits for the pods that the scheduler preempts for it.
	preemptionPatience = 5 * time.Minute
	// followerDelay is how much later than the leader the other replicas delete a pod.
	followerDelay = time.Second
	// recheckInterval is how often pods are checked whose wait depends on what no event shows.
	recheckInterval = time.Second
	// The leader deletes leaderRate pods in a second, each other replica followerRate: ten in all
	// with up to three replicas.
	leaderRate, followerRate = rate.Limit(8), rate.Limit(1)
)

// leastPatience is how long a pod waits at least after no strike, after one, and after more. So
// pods of one name are deleted at most three times in ten minutes, those of a reservation name
// three times for each pod that waits at once: strikes that come during a wait do not prolong it. A
// replica that has restarted knows of no strikes, so each restart allows two deletions more.
var leastPatience = []time.Duration{0, 30 * time.Second, 5 * time.Minute}

// A patienceReconciler deletes pods that wait too long for the node that they are required to run
// on, because the affinity of a pending pod cannot be changed (docs/facts.md, "The affinity of a
// pending pod cannot be relaxed"). The controllers of these pods create new ones, whose node is
// only preferred. It runs in every replica: no pod waits for the election of a leader.
type patienceReconciler struct {
	cluster *cluster
	client  client.Client
	report  reporter
	log     logr.Logger

	leader, follower *rate.Limiter
	waits            map[types.NamespacedName]podWait
}

func newPatienceReconciler(c *cluster, writes client.Client, report reporter, log logr.Logger) *patienceReconciler {
	return &patienceReconciler{cluster: c, client: writes, report: report, log: log,
		leader: rate.NewLimiter(leaderRate, 1), follower: rate.NewLimiter(followerRate, 1),
		waits: map[types.NamespacedName]podWait{}}
}

// A podWait is what this replica has seen of a pod that waits for its node, by its own clock.
type podWait struct {
	uid       types.UID
	first     time.Time // when a scheduler had tried the pod
	since     time.Time // when the patience began
	nominated bool
}

// observe returns the wait after another look at the pod. ending reports whether a pod that has an
// address for it ends on its node.
func (w podWait) observe(p *podView, ending bool, now time.Time) podWait {
	if w.uid != p.UID {
		w = podWait{uid: p.UID, first: now, since: now}
	}
	if p.Nominated || w.nominated || ending && now.Sub(w.first) < endingPatience {
		w.since = now
	}
	w.nominated = p.Nominated
	return w
}

// end returns when the patience is over.
func (w podWait) end(patience time.Duration) time.Time {
	last := w.first.Add(max(patience, preemptionPatience))
	if end := w.since.Add(patience); !w.nominated && end.Before(last) {
		return end
	}
	return last
}

// Reconcile deletes a pod whose patience is over.
func (r *patienceReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	p := r.cluster.pod(req.String())
	if p == nil || !p.awaitsNode() || !p.Recreated || p.DeletionTimestamp != nil || p.Patience == lease.Forever {
		delete(r.waits, req.NamespacedName)
		return reconcile.Result{}, nil
	}
	now, ending := r.cluster.now(), r.cluster.isEnding(p)
	w := r.waits[req.NamespacedName].observe(p, ending, now)
	r.waits[req.NamespacedName] = w
	strikes := min(r.cluster.strikesUntil(p.keyOn(p.Pinned), w.first), len(leastPatience)-1)
	end, limiter := w.end(max(time.Duration(p.Patience), leastPatience[strikes])), r.leader
	if !r.cluster.isLeader() {
		end, limiter = end.Add(followerDelay), r.follower
	}
	switch left := end.Sub(now); {
	case left > 0 && ending:
		return reconcile.Result{RequeueAfter: min(left, recheckInterval)}, nil
	case left > 0:
		return reconcile.Result{RequeueAfter: left}, nil
	case !r.cluster.Synced() || !limiter.AllowN(now, 1):
		return reconcile.Result{RequeueAfter: recheckInterval / 8}, nil
	}
	return reconcile.Result{}, r.replace(ctx, p, now.Sub(w.first))
}

// replace deletes a pod, unless it has changed since it was read.
func (r *patienceReconciler) replace(ctx context.Context, p *podView, waited time.Duration) error {
	deleted, err := control.Delete(ctx, r.client, &corev1.Pod{ObjectMeta: p.ObjectMeta}, p.ResourceVersion)
	if err != nil {
		return fmt.Errorf("deleting %s/%s, which waits for %s: %w", p.Namespace, p.Name, p.Pinned, err)
	}
	if !deleted {
		return nil // the change of the pod enqueues it again
	}
	replacements.Inc()
	r.log.Info("deleted a pod that its node did not accept", "pod", keyOf(p), "node", p.Pinned, "waited", waited)
	r.report(p, reasonReplaced, fmt.Sprintf("deleted after it waited %s for %s; its successor may run elsewhere: %s",
		waited.Round(time.Second), p.Pinned, p.Message))
	return nil
}

// isEnding reports whether a pod with the reservation name of another one ends on the node that the
// other one waits for. Its address and its room will be free.
func (c *cluster) isEnding(p *podView) bool {
	all := c.pods.ByIndex(byName, control.NodeKey(control.NameKey(p.Namespace, p.For), p.Pinned))
	return slices.ContainsFunc(all, func(o *podView) bool { return o.Node != "" && o.DeletionTimestamp != nil })
}

// follow enqueues the pods that may wait for their node, and those that did.
func (r *patienceReconciler) follow(_ context.Context, queue control.Queue) {
	r.cluster.pods.Handle(kube.Each(func(p *podView) {
		if p.Pinned != "" {
			queue.Add(requestOf(p))
		}
	}))
}

const (
	// strikeLife is how long a strike counts.
	strikeLife = 10 * time.Minute
	// maxStrikeKeys is the largest number of keys with strikes. Beyond that the key that was looked
	// up or got a strike least recently is forgotten: its next pod may be pinned again.
	maxStrikeKeys = 10_000
	// maxStrikes is the largest number of strikes that are remembered for a key.
	maxStrikes = 8
)

// A strike is a pinned pod that did not run on its node: it was deleted while it was unschedulable,
// was bound to another node, or was rejected by the kubelet because of its node affinity. Each
// replica has strikes of its own, from what its watch of pods shows.
type strike struct {
	at  time.Time
	uid types.UID // of the pod
}

// strike adds a strike of a pod, unless the pod has one already.
func (c *cluster) strike(p *podView) {
	key := p.keyOn(p.Pinned)
	all := c.strikesOf(key)
	if slices.ContainsFunc(all, func(s strike) bool { return s.uid == p.UID }) {
		return
	}
	all = append(slices.Clip(all), strike{c.now(), p.UID})
	c.strikes.Add(key, all[max(0, len(all)-maxStrikes):], strikeLife)
}

// strikesUntil returns how many strikes a key had at a time.
func (c *cluster) strikesUntil(key string, at time.Time) (count int) {
	for _, s := range c.strikesOf(key) {
		if !s.at.After(at) && c.now().Sub(s.at) < strikeLife {
			count++
		}
	}
	return count
}

func (c *cluster) strikesOf(key string) []strike {
	all, _ := c.strikes.Get(key)
	list, _ := all.([]strike)
	return list
}
