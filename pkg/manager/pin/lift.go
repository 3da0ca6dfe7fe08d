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

// LiftGates lifts the gates of pods that wait, until there are none. It returns the number of
// lifted gates, and an error if gates are left when the context ends.
//
// A manager calls it when it stops. Other replicas may still run, so LiftGates lifts a gate only
// after it has seen the pod wait for the delay, and only if the pod has no other gate. If all is
// set, it lifts our gate also from pods that have other gates, for the removal of leasehold from a
// cluster.
func LiftGates(ctx context.Context, c client.Client, delay time.Duration, all bool) (int, error) {
	l := newLifter(c, c, delay, all)
	var problem error
	for {
		waiting, err := l.round(ctx, time.Now())
		if waiting == 0 && err == nil {
			return l.lifted, nil
		}
		if ctx.Err() == nil || problem == nil { // a round that the context ended does not say why gates are left
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

// A lifter lifts the gates of pods that it has seen waiting for a while.
type lifter struct {
	reader client.Reader // the API server itself
	client client.Client
	delay  time.Duration
	limit  time.Duration // time limit of a call, so that one without an answer does not delay other pods
	all    bool          // also of pods that have other gates

	first  map[types.UID]time.Time // when a pod was first seen to wait
	lifted int
}

func newLifter(r client.Reader, c client.Client, delay time.Duration, all bool) *lifter {
	return &lifter{reader: r, client: c, delay: delay, limit: callTimeout, all: all, first: map[types.UID]time.Time{}}
}

// round lists the pods that wait once, lifts gates, and returns how many waited. A gate that cannot
// be lifted delays no other.
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

func (l *lifter) lift(ctx context.Context, p metav1.ObjectMeta) error {
	call, cancel := context.WithTimeout(ctx, l.limit)
	defer cancel()
	_, err := liftGate(call, l.client, p.Namespace, p.Name, p.UID)
	return err
}

// waiting lists the pods with our gate, in pages. The API server leaves out those that are bound.
func (l *lifter) waiting(ctx context.Context) ([]metav1.ObjectMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var waiting []metav1.ObjectMeta
	for token := ""; ; {
		var pending corev1.PodList
		err := l.reader.List(ctx, &pending, client.Limit(500), client.Continue(token), client.MatchingFieldsSelector{
			Selector: fields.SelectorFromSet(fields.Set{"spec.nodeName": "",
				"status.phase": string(corev1.PodPending)})})
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
