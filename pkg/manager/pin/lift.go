package pin

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
)

// listTimeout is the time limit for listing the pods that wait, for all pages.
const listTimeout = 30 * time.Second

// LiftGates lifts the gates of pending pods until no such pod has a gate. It returns the number of
// gates that it has lifted. If gates are left when ctx ends, it also returns an error.
//
// The manager calls LiftGates when it stops. Other replicas may still run and lift their gates, so
// LiftGates lifts a gate only when it has seen the pod for the delay, and only if the pod has no
// other gate. If all is true, which is for the removal of leasehold from a cluster, it also lifts
// the gates of pods that have other gates.
func LiftGates(ctx context.Context, c client.Client, delay time.Duration, all bool) (int, error) {
	l := newLifter(c, c, delay, all)
	var problem error
	for {
		waiting, err := l.round(ctx, time.Now())
		if waiting == 0 && err == nil {
			return l.lifted, nil
		}
		if ctx.Err() == nil || problem == nil { // keep the error of the last round that ctx did not end
			problem = err
		}
		select {
		case <-ctx.Done():
			return l.lifted, errors.Join(fmt.Errorf("pods with the gate %s are left: %w",
				wellknown.GateNominate, ctx.Err()),
				problem)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A lifter lifts the gates of pods that it has seen with a gate for some time.
type lifter struct {
	reader client.Reader // reads from the API server, not from a cache
	client client.Client
	delay  time.Duration
	limit  time.Duration // time limit of each call, so that a call without an answer does not delay other pods
	all    bool          // also lift gates of pods that have other gates
	cached bool          // list from the API server's watch cache, which may be a moment behind

	first  map[types.UID]time.Time // when a pod was first seen to wait
	lifted int
}

func newLifter(r client.Reader, c client.Client, delay time.Duration, all bool) *lifter {
	return &lifter{reader: r, client: c, delay: delay, limit: callTimeout, all: all, first: map[types.UID]time.Time{}}
}

// round lists the pods with a gate once, and lifts the gates of those that it has seen for the
// delay. It returns the number of pods in the list. If a gate cannot be lifted, round continues
// with the other pods.
func (l *lifter) round(ctx context.Context, now time.Time) (int, error) {
	waiting, err := l.waiting(ctx)
	if err != nil {
		return 0, err
	}
	first := make(map[types.UID]time.Time, len(waiting))
	var problems []error
	for _, p := range waiting {
		seen := since(l.first[p.UID], true, now)
		first[p.UID] = seen
		if now.Sub(seen) < l.delay {
			continue
		}
		if err := l.lift(ctx, p); unexpected(err) != nil {
			problems = append(problems, fmt.Errorf("lifting the gate of %s/%s: %w", p.Namespace, p.Name, err))
		} else {
			l.lifted++
		}
	}
	l.first = first
	return len(waiting), errors.Join(problems...)
}

// lift lifts the gate of one pod.
func (l *lifter) lift(ctx context.Context, p metav1.ObjectMeta) error {
	call, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	_, err := liftGate(call, l.client, p.Namespace, p.Name, p.UID)
	return err
}

// waiting lists the pods with the gate of the pin, in pages. Pods that are bound to a node cannot
// have gates, and the field selector excludes them.
func (l *lifter) waiting(ctx context.Context) ([]metav1.ObjectMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var waiting []metav1.ObjectMeta
	for token := ""; ; {
		var pending corev1.PodList
		options := client.ListOptions{Limit: 500, Continue: token, FieldSelector: fields.SelectorFromSet(fields.Set{
			"spec.nodeName": "", "status.phase": string(corev1.PodPending)})}
		if l.cached { // the watch cache has no pages
			options.Limit, options.Raw = 0, &metav1.ListOptions{ResourceVersion: "0"}
		}
		err := l.reader.List(ctx, &pending, &options)
		if err != nil {
			return nil, fmt.Errorf("listing the pods that wait: %w", err)
		}
		for _, p := range pending.Items {
			if gated(&p) && (l.all || len(p.Spec.SchedulingGates) == 1) {
				waiting = append(waiting, identity(&p.ObjectMeta))
			}
		}
		if token = pending.Continue; token == "" {
			return waiting, nil
		}
	}
}
