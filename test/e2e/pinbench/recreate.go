package pinbench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/test/e2e/fleet"
)

// The modes without the manager: no pin, and a preferred affinity of weight 100 in the pod
// template, as the reference's webhook writes it.
const (
	Nothing   = "nothing"
	Reference = "reference"
)

// Modes are all modes, in the order of the table.
var Modes = []string{Nothing, Reference, "none", "prefer", "require"}

func needsManager(mode string) bool { return mode != Nothing && mode != Reference }

// stuckAfter is when a pod counts as stuck. All measured steps take less than a tenth of it.
const stuckAfter = 60 * time.Second

// A trial is the result of one pod that was deleted and recreated by its controller.
type trial struct {
	sameNode    bool
	sameAddress bool
	took        time.Duration // from the deletion to Running
	stuck       bool
	why         string // where it went and what is written on it, if it did not come back
}

// recreator recreates pods and records the trials.
type recreator struct {
	client kubernetes.Interface
	fleet  *fleet.Fleet
	pods   *tracker
	// parallel is the number of concurrent StatefulSets.
	parallel int
}

// mode runs at least count trials in one mode, in its own namespace.
func (r *recreator) mode(ctx context.Context, mode string, count int) ([]trial, error) {
	namespace := "pin-" + mode
	if err := r.namespace(ctx, namespace); err != nil {
		return nil, err
	}
	if _, err := r.client.CoreV1().Pods(namespace).Create(ctx, filler(namespace), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if _, ok := r.pods.running(ctx, types.NamespacedName{Namespace: namespace, Name: "filler"}, ""); !ok {
		return nil, fmt.Errorf("the filler does not run: %w", ctx.Err())
	}
	var mu sync.Mutex
	var trials []trial
	group, in := errgroup.WithContext(ctx)
	group.SetLimit(r.parallel)
	for i := range (count + siblings - 1) / siblings {
		group.Go(func() error {
			// Half of the sets have spread constraints, the others the scheduler's defaults.
			got, err := r.set(in, statefulSet(namespace, fmt.Sprintf("set%d", i), mode, i%2 == 0))
			mu.Lock()
			defer mu.Unlock()
			trials = append(trials, got...)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return trials, err
	}
	// The namespace is kept, because emptying it would affect the next measurement.
	return trials, r.client.CoreV1().Pods(namespace).Delete(ctx, "filler", metav1.DeleteOptions{})
}

func (r *recreator) namespace(ctx context.Context, name string) error {
	_, err := r.client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return until(ctx, func() (bool, error) { // pods are refused before
		_, err := r.client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
}

// set starts a StatefulSet on the hot node, recreates all its pods, a half at a time, and removes
// it.
func (r *recreator) set(ctx context.Context, s *appsv1.StatefulSet) ([]trial, error) {
	sets := r.client.AppsV1().StatefulSets(s.Namespace)
	if _, err := sets.Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	first := make([]seen, siblings)
	for i := range first {
		limit, cancel := context.WithTimeout(ctx, stuckAfter)
		var ok bool
		first[i], ok = r.pods.running(limit, podOf(s, i), "")
		cancel()
		if !ok {
			return nil, fmt.Errorf("pod %v does not start on %s:%s", podOf(s, i), hot, describe(first[i].pod))
		}
	}
	if err := r.published(ctx, s); err != nil {
		return nil, err
	}
	changed, err := sets.Patch(ctx, s.Name, types.JSONPatchType, []byte(release), metav1.PatchOptions{})
	if err != nil {
		return nil, err
	}
	err = until(ctx, func() (bool, error) {
		now, err := sets.Get(ctx, s.Name, metav1.GetOptions{})
		return err == nil && now.Status.ObservedGeneration >= changed.Generation &&
			now.Status.UpdateRevision != now.Status.CurrentRevision, err
	})
	if err != nil {
		return nil, fmt.Errorf("StatefulSet %s has no new revision: %w", s.Name, err)
	}
	trials := make([]trial, siblings)
	for half := range slices.Chunk(first, siblings/2) {
		at := slices.IndexFunc(first, func(x seen) bool { return x.pod.UID == half[0].pod.UID })
		if err := r.recreate(ctx, half, trials[at:]); err != nil {
			return nil, err
		}
	}
	return trials, r.remove(ctx, s)
}

// published waits until all addresses of the set are published.
func (r *recreator) published(ctx context.Context, s *appsv1.StatefulSet) error {
	return until(ctx, func() (bool, error) {
		lines, err := r.fleet.Reserved(ctx, s.Namespace)
		for i := range siblings {
			if !slices.Contains(lines, podOf(s, i).Name+" "+hot+" Bound") {
				return false, err
			}
		}
		return true, nil
	})
}

// recreate deletes pods at once and waits for their successors.
func (r *recreator) recreate(ctx context.Context, old []seen, trials []trial) error {
	deleted := make([]time.Time, len(old))
	for i, o := range old {
		deleted[i] = time.Now()
		err := r.client.CoreV1().Pods(o.pod.Namespace).Delete(ctx, o.pod.Name, metav1.DeleteOptions{})
		if err != nil {
			return err
		}
	}
	for i, o := range old {
		limit, cancel := context.WithDeadline(ctx, deleted[i].Add(stuckAfter))
		now, ok := r.pods.running(limit, nameOf(o.pod), o.pod.UID)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		trials[i] = judge(o.pod, now.pod, ok, now.running.Sub(deleted[i]))
	}
	return nil
}

func judge(old, now *corev1.Pod, running bool, took time.Duration) trial {
	if !running {
		return trial{stuck: true, took: stuckAfter, why: "stuck:" + describe(now)}
	}
	t := trial{took: took, sameNode: now.Spec.NodeName == old.Spec.NodeName,
		sameAddress: now.Status.PodIP == old.Status.PodIP}
	if !t.sameNode || !t.sameAddress {
		t.why = fmt.Sprintf("was on %s as %s:%s", old.Spec.NodeName, old.Status.PodIP, describe(now))
	}
	return t
}

// describe returns the state of a pod.
func describe(p *corev1.Pod) string {
	if p == nil {
		return " no pod"
	}
	var b strings.Builder
	fmt.Fprintf(&b, " %s %s node=%q address=%q", p.Name, p.Status.Phase, p.Spec.NodeName, p.Status.PodIP)
	for _, key := range []string{wellknown.AnnotationPinnedNode, wellknown.AnnotationPinReason} {
		if v, ok := p.Annotations[key]; ok {
			fmt.Fprintf(&b, " %s=%q", key, v)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue {
			fmt.Fprintf(&b, " %s: %s", c.Reason, c.Message)
		}
	}
	return b.String()
}

// remove deletes the set and its pods; their holds stay.
func (r *recreator) remove(ctx context.Context, s *appsv1.StatefulSet) error {
	if err := r.client.AppsV1().StatefulSets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	for i := range siblings {
		err := r.client.CoreV1().Pods(s.Namespace).Delete(ctx, podOf(s, i).Name, metav1.DeleteOptions{})
		if ignoreNotFound(err) != nil {
			return err
		}
	}
	limit, cancel := context.WithTimeout(ctx, stuckAfter)
	defer cancel()
	for i := range siblings {
		if err := r.pods.gone(limit, podOf(s, i)); err != nil {
			return err
		}
	}
	return nil
}

func podOf(s *appsv1.StatefulSet, i int) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d", s.Name, i)}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// until calls done until it returns true, for at most a minute.
func until(ctx context.Context, done func() (bool, error)) error {
	return within(ctx, time.Minute, done)
}

func within(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// row writes a line of the table.
func row(w io.Writer, mode string, trials []trial) {
	var nodes, addresses, stuck int
	took := make([]time.Duration, 0, len(trials))
	for _, t := range trials {
		took = append(took, t.took)
		for _, c := range []struct {
			n   *int
			yes bool
		}{{&nodes, t.sameNode}, {&addresses, t.sameAddress}, {&stuck, t.stuck}} {
			if c.yes {
				*c.n++
			}
		}
	}
	slices.Sort(took)
	share := func(n int) string { return fmt.Sprintf("%d (%.0f %%)", n, 100*float64(n)/float64(len(trials))) }
	fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\n", mode, len(trials), share(nodes), share(addresses),
		seconds(percentile(took, 50)), seconds(percentile(took, 95)), seconds(percentile(took, 100)), stuck)
}

const header = "MODE\tRECREATED\tSAME NODE\tSAME ADDRESS\tMEDIAN\tP95\tMAX\tSTUCK\n"

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// percentile returns the smallest value of a sorted list that at least p percent of the values do
// not exceed.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
