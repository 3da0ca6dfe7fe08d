package pin

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/kube/meta"
)

// LiftGates lifts the gates of pods that wait, until none does. It is for the end. A manager ends, and another replica may
// still nominate: it leaves it patience to do so, and takes only pods that wait for nothing else. Or leasehold ends in a
// cluster: then all, also those that somebody else holds back, for later on nobody will take ours off them. It returns how
// many it lifted.
func LiftGates(ctx context.Context, c client.Client, patience time.Duration, all bool) (int, error) {
	first := map[types.UID]time.Time{}
	lifted := 0
	for {
		waiting, err := waiting(ctx, c, all)
		if err != nil || len(waiting) == 0 {
			return lifted, err
		}
		now := time.Now()
		for _, p := range waiting {
			seen, found := first[p.UID]
			if !found {
				first[p.UID], seen = now, now
			}
			if now.Sub(seen) < patience {
				continue
			}
			if err := liftGate(ctx, c, p.Namespace, p.Name, p.UID); unexpected(err) != nil {
				return lifted, fmt.Errorf("lifting the gate of %s/%s: %w", p.Namespace, p.Name, err)
			}
			lifted++
		}
		select {
		case <-ctx.Done():
			return lifted, fmt.Errorf("%d pods still have the gate %s: %w", len(waiting), meta.GateNominate, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// waiting lists the pods with our gate. The API server leaves out all that run.
func waiting(ctx context.Context, c client.Reader, all bool) ([]corev1.Pod, error) {
	var pending corev1.PodList
	err := c.List(ctx, &pending, client.MatchingFieldsSelector{Selector: fields.SelectorFromSet(fields.Set{
		"spec.nodeName": "", "status.phase": string(corev1.PodPending)})})
	if err != nil {
		return nil, fmt.Errorf("listing the pods that wait: %w", err)
	}
	var waiting []corev1.Pod
	for _, p := range pending.Items {
		if gated(&p) && (all || len(p.Spec.SchedulingGates) == 1) {
			waiting = append(waiting, p)
		}
	}
	return waiting, nil
}
