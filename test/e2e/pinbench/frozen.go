package pinbench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

const (
	frozenNodes = 20
	setSize     = 50
	// startAll is the maximum duration of the start of many pods on a small machine.
	startAll = 10 * time.Minute
)

// Frozen recreates count pods while the scheduler is frozen, resumes it after a duration, and
// reports whether all pods returned to their nodes and addresses. It is one sequence of steps.
func (b *Bench) Frozen(ctx context.Context, count int, away time.Duration) (fine bool, err error) {
	f, pods, stop, err := b.startFleet(ctx, frozenNodes)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := b.startManagers(ctx, 2, nil); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.stopManager(ctx)) }()
	r := &recreator{client: b.client, fleet: f, pods: pods}
	names, err := b.startSets(ctx, r, count)
	if err != nil {
		return false, err
	}
	b.say("%d pods run; the scheduler is frozen, and all of them are deleted", len(names))
	before := map[types.NamespacedName]*corev1.Pod{}
	for _, name := range names {
		s, _ := pods.get(name)
		before[name] = s.pod
	}
	resume, err := b.freeze(ctx, cluster.Scheduler)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, resume()) }()
	frozen := time.Now()
	for i := range sets(count) {
		err := b.client.CoreV1().Pods(frozenNamespace(i)).DeleteCollection(ctx,
			metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
	}
	made := func() (n, pinned int) {
		for _, name := range names {
			s, _ := pods.get(name)
			if s.pod == nil || s.pod.UID == before[name].UID {
				continue
			}
			n++
			if s.pod.Annotations[wellknown.AnnotationPinnedNode] == before[name].Spec.NodeName {
				pinned++
			}
		}
		return n, pinned
	}
	err = within(ctx, startAll, func() (bool, error) {
		n, _ := made()
		return n == len(names) && time.Since(frozen) >= away, nil
	})
	n, pinned := made()
	b.say("%.0f s later %d of them exist again, %d pinned; the scheduler is resumed",
		time.Since(frozen).Seconds(), n, pinned)
	if err = errors.Join(err, resume()); err != nil {
		return false, err
	}
	resumed := time.Now()
	limit, cancel := context.WithTimeout(ctx, startAll)
	defer cancel()
	elsewhere, others := 0, 0
	for _, name := range names {
		s, ok := pods.running(limit, name, before[name].UID)
		if !ok {
			return false, fmt.Errorf("a pod does not start:%s", describe(s.pod))
		}
		if s.pod.Spec.NodeName != before[name].Spec.NodeName {
			if elsewhere++; elsewhere <= 5 {
				b.say("    was on %s:%s", before[name].Spec.NodeName, describe(s.pod))
			}
		}
		if s.pod.Status.PodIP != before[name].Status.PodIP {
			others++
		}
	}
	b.say("%.0f s later all %d run: %d on the same node, %d with the same address",
		time.Since(resumed).Seconds(), len(names), len(names)-elsewhere, len(names)-others)
	return elsewhere == 0 && others == 0, nil
}

func sets(count int) int { return (count + setSize - 1) / setSize }

func frozenNamespace(set int) string { return fmt.Sprintf("frozen-%d", set) }

// startSets starts StatefulSets for any node, each in its own namespace, and waits until their
// addresses are published.
func (b *Bench) startSets(ctx context.Context, r *recreator, count int) (names []types.NamespacedName, err error) {
	for i := range sets(count) {
		replicas := int32(min(setSize, count-i*setSize))
		namespace := frozenNamespace(i)
		if err := r.namespace(ctx, namespace); err != nil {
			return nil, err
		}
		s := statefulSet(namespace, "set", "none", false)
		s.Spec.Replicas = &replicas
		s.Spec.Template.Annotations = map[string]string{policy.Annotation: "60m"}
		s.Spec.Template.Spec.NodeSelector, s.Spec.Template.Spec.Containers = nil, containers("10m", "16Mi")
		s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{}
		if _, err := b.client.AppsV1().StatefulSets(namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		for j := range int(replicas) {
			names = append(names, podOf(s, j))
		}
	}
	limit, cancel := context.WithTimeout(ctx, startAll)
	defer cancel()
	for _, name := range names {
		if s, ok := r.pods.running(limit, name, ""); !ok {
			return nil, fmt.Errorf("a pod does not start:%s", describe(s.pod))
		}
	}
	for i := range sets(count) {
		err := within(ctx, startAll, func() (bool, error) {
			lines, err := r.fleet.Reserved(ctx, frozenNamespace(i))
			bound := 0
			for _, line := range lines {
				if strings.HasSuffix(line, " Bound") {
					bound++
				}
			}
			return bound == min(setSize, count-i*setSize), err
		})
		if err != nil {
			return nil, fmt.Errorf("addresses are not published: %w", err)
		}
	}
	return names, nil
}

// freeze stops a component of the control plane until resume is called, which may be called again.
func (b *Bench) freeze(ctx context.Context, name string) (resume func() error, err error) {
	reply, err := b.control().Call(ctx, machine.Request{List: true})
	if err != nil {
		return nil, err
	}
	pid := fmt.Sprint(reply.Services[name])
	if _, err := b.control().Run(ctx, "kill", "-STOP", pid); err != nil {
		return nil, err
	}
	return func() error {
		_, err := b.control().Run(context.WithoutCancel(ctx), "kill", "-CONT", pid)
		return err
	}, nil
}
