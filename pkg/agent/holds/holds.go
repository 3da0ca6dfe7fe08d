// Package holds ends holds of pods that will not return.
package holds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

const (
	// MoveGrace is how long a pod must be Ready on another node before its hold here ends.
	MoveGrace = 5 * time.Minute
	// ownerGrace is how long an ordinal must be missing from its StatefulSet before a hold without
	// end is released.
	ownerGrace = 10 * time.Minute
	// ForeverLimit is how long an address is held forever for a pod without a StatefulSet. For such
	// a pod, nothing shows whether it will return.
	ForeverLimit = 90 * 24 * time.Hour
	// passesPerGrace is the number of passes within the shorter of MoveGrace and ownerGrace.
	passesPerGrace = 5
)

// Task is the task that ends the holds of pods that will not return to this node:
//
//   - pods that are Ready on another node,
//   - pods whose address is held forever, and whose StatefulSet no longer has their ordinal,
//   - pods whose address is held forever, that have no StatefulSet and have been away for months.
//
// That a pod is Ready elsewhere, or that an ordinal is missing, must be observed for several
// minutes by this process before the hold ends. A failed request is not an observation.
type Task struct {
	*retention.Node
	// Named returns what the manager names (publish.Pool). Among it are the reservations of other
	// nodes for pods whose addresses this node holds.
	Named func() ipamv1.NodeAddressPoolSpec
	// MoveGrace is used instead of the constant MoveGrace.
	MoveGrace time.Duration
	// ForeverLimit is used instead of the constant ForeverLimit. 0 means no limit.
	ForeverLimit time.Duration
	Problem      daemon.Problem

	failed   []error // of the pass
	moved    streaks // by the node and UID of the pod
	orphaned streaks // by the path of the StatefulSet
}

// Run ends holds until ctx is done. It returns ctx.Err().
func (h *Task) Run(ctx context.Context) error {
	wait.JitterUntilWithContext(ctx, func(ctx context.Context) { h.pass(ctx, time.Now()) }, h.begin(), 0.1, true)
	return ctx.Err()
}

// begin resets all observations, and returns the time between two passes.
func (h *Task) begin() (period time.Duration) {
	period = min(h.MoveGrace, ownerGrace) / passesPerGrace
	h.moved = streaks{3 * period, map[kube.Name]streak{}}
	h.orphaned = streaks{3 * period, map[kube.Name]streak{}}
	return period
}

// pass reads the holds of the node, without cool-downs, and ends those whose pods will not
// return. If the leases cannot be read, it ends none.
func (h *Task) pass(ctx context.Context, now time.Time) {
	view, err := h.Service.List(ctx, func(l lease.Lease) bool { return l.State == lease.Held && l.IsHold })
	if h.failed = nil; err != nil {
		h.failed = []error{fmt.Errorf("reading the leases: %w", err)}
	} else {
		held := retention.ByPod(view.Leases)
		h.endMoved(ctx, held, now)
		h.endEndless(ctx, held, now, view.Now)
	}
	if ctx.Err() == nil {
		h.Problem.Log(h.Log, slog.LevelWarn, "ending holds", errors.Join(h.failed...))
	}
}

// endMoved ends the holds of pods that have been Ready on another node for MoveGrace. It reads the
// pods from the API server's watch cache. Before it ends a hold, it reads the pod once more, from
// etcd.
func (h *Task) endMoved(ctx context.Context, held map[kube.Name][]lease.Lease, now time.Time) {
	h.moved.keep(held)
	for _, pod := range h.candidates(held) {
		at, err := h.movedTo(ctx, pod, "0")
		if h.observe(&h.moved, pod, at, err, now) < h.MoveGrace {
			continue
		}
		still, err := h.movedTo(ctx, pod, "")
		if still != at {
			h.observe(&h.moved, pod, "", err, now)
			continue
		}
		node, _, _ := strings.Cut(at, "/")
		h.end(ctx, held[pod], fmt.Sprintf("the pod has been Ready on node %s for %s", node, h.MoveGrace))
	}
}

// maxUnclaimed is the largest number of pods without a claim that one pass reads. A claim is an
// IPReservation of another node with a confirmed sandbox of the pod, which the manager names. There
// may be hundreds of pods without a claim whose addresses are held forever.
const maxUnclaimed = 20

// candidates returns the pods that may run on another node: the pods with a claim (see
// maxUnclaimed), the pods that were seen on another node before, and at most maxUnclaimed of the
// other pods whose addresses are held forever, chosen at random. The last group is read because no
// agent claims a pod whose annotation was removed.
//
// A claim is not read: it may be of a node that is down, so that it only is a reason to read the
// pod.
func (h *Task) candidates(held map[kube.Name][]lease.Lease) []kube.Name {
	claimed := map[kube.Name]bool{}
	for _, ref := range h.Named().Reservations {
		claimed[kube.Name{Namespace: ref.Namespace, Name: ipamv1.PodOf(ref.Name)}] = true
	}
	var now, later []kube.Name
	for pod, leases := range held {
		if slices.ContainsFunc(leases, func(l lease.Lease) bool { return l.ReserveAs != "" }) {
			continue // it is for any pod with the name, wherever its last pod is
		}
		if _, isSeen := h.moved.of[pod]; isSeen || claimed[pod] {
			now = append(now, pod)
		} else if slices.ContainsFunc(leases, isForever) {
			later = append(later, pod)
		}
	}
	rand.Shuffle(len(later), func(i, j int) { later[i], later[j] = later[j], later[i] })
	return append(now, later[:min(maxUnclaimed, len(later))]...)
}

// isForever reports whether a hold is without end, unless an AddressRequest says how long it lasts.
func isForever(l lease.Lease) bool {
	return l.Hold == lease.Forever && !(l.IsUnused() && l.Owner != "")
}

// movedTo returns the other node on which a pod is Ready, and the pod's UID, joined by a slash. It
// returns "" if the pod is not Ready on another node. It reads the pod from the API server's watch
// cache if the version is "0", and from etcd if it is "".
func (h *Task) movedTo(ctx context.Context, name kube.Name, version string) (string, error) {
	pod := &corev1.Pod{}
	err := kube.Get(ctx, h.Clients.Core, "pods", name, version, pod)
	if kube.IsGone(err) {
		return "", nil
	}
	if err != nil || !kube.IsReady(pod) || pod.Spec.NodeName == h.Name {
		return "", err
	}
	return pod.Spec.NodeName + "/" + retention.PodOf(pod).UID, nil
}

// endEndless ends the holds without end whose StatefulSet has not had the pod's ordinal for
// ownerGrace, and those of pods that have no StatefulSet and have been away for ForeverLimit. It
// reads each StatefulSet once, from etcd.
func (h *Task) endEndless(ctx context.Context, held map[kube.Name][]lease.Lease, now time.Time, at lease.Instant) {
	h.orphaned.keep(held)
	read := map[string]func() (kube.Ordinals, error){} // by the path of the StatefulSet
	var forgotten []lease.Lease
	for pod, leases := range held {
		path, ordinal, isOfSet := setOf(leases, pod)
		if !isOfSet {
			h.observe(&h.orphaned, pod, "", nil, now)
			forgotten = append(forgotten, slices.DeleteFunc(slices.Clone(leases), func(l lease.Lease) bool {
				return !isForever(l) || h.ForeverLimit == 0 || at.Since(l.ReleasedAt) < h.ForeverLimit
			})...)
			continue
		}
		if read[path] == nil {
			read[path] = sync.OnceValues(func() (kube.Ordinals, error) { return h.readSet(ctx, path) })
		}
		wanted, err := read[path]()
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
		missing := path
		if wanted.Has(ordinal) {
			missing = ""
		}
		if h.observe(&h.orphaned, pod, missing, err, now) >= ownerGrace {
			h.end(ctx, leases, fmt.Sprintf("its StatefulSet has not had ordinal %d for %s", ordinal, ownerGrace))
		}
	}
	h.end(ctx, forgotten, fmt.Sprintf("the pod was away for %s (--forever-limit)", h.ForeverLimit))
}

// observe records what a read has shown of a pod: "" if it is no reason to end the hold. It returns
// the time since the streak began, 0 if there is none or the read has failed.
func (h *Task) observe(s *streaks, pod kube.Name, what string, err error, now time.Time) time.Duration {
	switch {
	case err != nil:
		h.Log.Debug("reading a pod or its StatefulSet failed", "pod", pod.String(), "error", err)
	case what == "":
		delete(s.of, pod)
	default:
		return s.observe(pod, what, now)
	}
	return 0
}

func (h *Task) end(ctx context.Context, holds []lease.Lease, reason string) {
	h.failed = append(h.failed, retention.End(ctx, h.Service.EndHolds, h.Log, holds, reason))
}

// streaks has what was observed of each pod in a row, and since when. A failed request ends no
// streak, and is no observation.
type streaks struct {
	gap time.Duration // a longer time without an observation starts a new streak
	of  map[kube.Name]streak
}

type streak struct {
	what        string
	since, last time.Time
}

// observe records an observation of a pod, and returns the time since its streak began.
func (s *streaks) observe(pod kube.Name, what string, now time.Time) time.Duration {
	before, known := s.of[pod]
	if !known || before.what != what || now.Sub(before.last) > s.gap {
		before = streak{what, now, now}
	}
	s.of[pod] = streak{what, before.since, now}
	return now.Sub(before.since)
}

// keep ends the streaks of all pods without a hold.
func (s *streaks) keep(held map[kube.Name][]lease.Lease) {
	maps.DeleteFunc(s.of, func(pod kube.Name, _ streak) bool { return held[pod] == nil })
}

// setOf returns the path of the StatefulSet of a pod, and the ordinal in the pod's name. leases are
// the holds of the pod. setOf reports false if none of them is held forever for a pod of a
// StatefulSet.
func setOf(leases []lease.Lease, pod kube.Name) (path string, ordinal int64, ok bool) {
	for _, l := range leases {
		if path, ordinal, ok := retention.ParseOwner(l.Owner, pod); ok && l.Hold == lease.Forever {
			return path, ordinal, true
		}
	}
	return "", 0, false
}

// readSet reads a StatefulSet from the API server, and returns the ordinals of its pods according
// to its spec. One that does not exist, or is being deleted, has none. An invalid spec is an error.
// Any client serves for the absolute path.
func (h *Task) readSet(ctx context.Context, path string) (none kube.Ordinals, err error) {
	result := h.Clients.IPAM.Get().Timeout(kube.RequestTimeout).AbsPath(path).Do(ctx)
	err = result.Error() // Raw would return this error without the decoded Status
	if kube.IsGone(err) {
		return none, nil // the API server serves the resource, and the object does not exist
	}
	raw, rawErr := result.Raw()
	if err = cmp.Or(err, rawErr); err != nil {
		return none, err
	}
	return ordinalsIn(raw)
}

// ordinalsIn returns the ordinals of the pods of a StatefulSet in JSON.
func ordinalsIn(raw []byte) (none kube.Ordinals, err error) {
	var object struct {
		Metadata struct {
			DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec map[string]any `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil || object.Metadata.DeletionTimestamp != nil {
		return none, err
	}
	return kube.OrdinalsOf(object.Spec, 1) // without spec.replicas, it has one replica
}
