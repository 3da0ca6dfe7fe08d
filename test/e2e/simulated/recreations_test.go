package simulated

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

const (
	// hot is the node that has the lowest score and passes all filters of the scheduler: it has a
	// taint PreferNoSchedule, high and uneven requests, siblings of the pod, and not its image.
	hot      = "node-0"
	image    = "bench/database:1"
	imageMiB = 900 // scores are full from 1000 MiB for a container on

	siblings = 8 // pods of a StatefulSet, half of which are recreated at a time

	// reference is a preferred affinity of weight 100 in the pod template, without the manager.
	reference = "reference"
)

// number returns a number from the environment, or a default.
func (r *rig) number(name string, value int) int {
	if text := os.Getenv(name); text != "" {
		var err error
		value, err = strconv.Atoi(text)
		r.must(err)
	}
	return value
}

// recreations recreates pods in each mode, and prints a table. Each pod of the mode require has to
// return to its node and address, and each other one has to start.
func (r *rig) recreations() {
	nodes, count := r.number("NODES", 6), r.number("RECREATIONS", 32)
	f := filled{nodes: make([]string, nodes)}
	r.each("nodes", nodes, func(ctx context.Context, i int) (err error) {
		n := newNode(i)
		if n.Name == hot {
			n.Spec.Taints = []corev1.Taint{{Key: "bench/full-soon", Effect: corev1.TaintEffectPreferNoSchedule}}
		} else {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{image},
				SizeBytes: imageMiB << 20})
		}
		f.nodes[i], err = r.register(ctx, n)
		return err
	})
	r.startManagers()
	k := r.startKubelets(r.startAgents(population{nodes: nodes}, f, 0), false, nil)
	for _, mode := range []string{reference, "none", "prefer", "require"} {
		var trials []trial
		var mu sync.Mutex
		r.namespace(mode)
		// The filler requests most of the hot node's processors and little of its memory.
		filler, err := r.client.CoreV1().Pods(mode).Create(r.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "filler"},
			Spec:       corev1.PodSpec{NodeName: hot, Containers: containers("20", "1Gi")}}, metav1.CreateOptions{})
		r.must(err)
		group, ctx := errgroup.WithContext(r.ctx)
		group.SetLimit(2)
		for i := range (count + siblings - 1) / siblings {
			group.Go(func() error {
				// Half of the sets have spread constraints, the others the scheduler's defaults.
				got, err := k.recreateSet(ctx, statefulSet(mode, fmt.Sprintf("set%d", i), i%2 == 0))
				mu.Lock()
				defer mu.Unlock()
				trials = append(trials, got...)
				return err
			})
		}
		r.must(group.Wait())
		same, took := 0, []time.Duration(nil)
		for _, t := range trials {
			took = append(took, t.took)
			if t.same {
				same++
			} else if mode == "require" {
				r.Errorf("was on %s", t.was)
			}
		}
		r.Logf("%-9s %d of %d on the same node and address; from deletion to Running: p50 %.2f s, p95 %.2f s", mode,
			same, len(took), percentile(took, 50).Seconds(), percentile(took, 95).Seconds())
		r.must(r.client.CoreV1().Pods(mode).Delete(r.ctx, filler.Name, metav1.DeleteOptions{}))
		r.must(k.gone(r.ctx, nameOf(filler), filler.UID))
	}
}

// A trial is the result of one pod that was deleted and recreated by its controller.
type trial struct {
	same bool          // node and address
	took time.Duration // from the deletion to Running
	was  string
}

// statefulSet returns a set whose first pods can only run on the hot node. Those that are created
// after the template is changed can run on any node.
func statefulSet(mode, name string, spread bool) *appsv1.StatefulSet {
	labels := map[string]string{"set": name}
	annotations := map[string]string{policy.Annotation: "60m", kube.AnnotationPin: mode}
	if mode == reference {
		annotations[kube.AnnotationPin] = "none"
	}
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: mode, Name: name},
		Spec: appsv1.StatefulSetSpec{Replicas: new(int32(siblings)),
			Selector:            &metav1.LabelSelector{MatchLabels: labels},
			PodManagementPolicy: appsv1.ParallelPodManagement,
			// The controller replaces no pods itself.
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
				Spec: corev1.PodSpec{Containers: containers("500m", "256Mi"), AutomountServiceAccountToken: new(false),
					NodeSelector: map[string]string{corev1.LabelHostname: hot}}}}}
	pod := &s.Spec.Template.Spec
	if spread {
		pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
			TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: s.Spec.Selector}}
	}
	if mode == reference {
		pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hot}}}}}}}}
	}
	return s
}

func podOf(s *appsv1.StatefulSet, i int) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d", s.Name, i)}
}

// recreateSet starts a StatefulSet on the hot node, recreates all its pods, a half at a time, and
// removes it.
func (k *kubelets) recreateSet(ctx context.Context, s *appsv1.StatefulSet) (trials []trial, err error) {
	sets, pods := k.client.AppsV1().StatefulSets(s.Namespace), k.client.CoreV1().Pods(s.Namespace)
	if _, err := sets.Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if err := k.published(ctx, s, siblings); err != nil {
		return nil, err
	}
	changed, err := sets.Patch(ctx, s.Name, types.JSONPatchType,
		[]byte(`[{"op": "remove", "path": "/spec/template/spec/nodeSelector"}]`), metav1.PatchOptions{})
	if err != nil {
		return nil, err
	}
	err = within(ctx, limit, func() error {
		now, err := sets.Get(ctx, s.Name, metav1.GetOptions{})
		if err == nil && (now.Status.ObservedGeneration < changed.Generation ||
			now.Status.UpdateRevision == now.Status.CurrentRevision) {
			err = fmt.Errorf("StatefulSet %s has no new revision", s.Name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for first := 0; first < siblings; first += siblings / 2 {
		var old []*corev1.Pod
		var deleted []time.Time
		for i := first; i < first+siblings/2; i++ {
			old, deleted = append(old, k.get(podOf(s, i)).pod), append(deleted, time.Now())
			if err := pods.Delete(ctx, podOf(s, i).Name, metav1.DeleteOptions{}); err != nil {
				return nil, err
			}
		}
		for i, o := range old {
			now, err := k.running(ctx, nameOf(o), o.UID)
			if err != nil {
				return nil, err
			}
			trials = append(trials, trial{took: now.running.Sub(deleted[i]),
				same: now.pod.Spec.NodeName == o.Spec.NodeName && now.pod.Status.PodIP == o.Status.PodIP,
				was:  fmt.Sprintf("%s as %s: %s is %s", o.Spec.NodeName, o.Status.PodIP, o.Name, describe(now.pod))})
		}
	}
	return trials, k.remove(ctx, s)
}

// published waits until the pods of a set run, and until their addresses are published.
func (k *kubelets) published(ctx context.Context, s *appsv1.StatefulSet, pods int) error {
	reservations, err := reservationClient(k.api)
	if err != nil {
		return err
	}
	for i := range pods {
		o, err := k.running(ctx, podOf(s, i), "")
		if err != nil {
			return err
		}
		node, err := k.client.CoreV1().Nodes().Get(ctx, o.pod.Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		name := types.NamespacedName{Namespace: s.Namespace, Name: v1alpha1.ObjectName(o.pod.Name, string(node.UID))}
		if err := within(ctx, limit, func() error {
			var r v1alpha1.IPReservation
			err := reservations.Get(ctx, name, &r)
			if err == nil && r.Status.State != v1alpha1.Bound {
				err = fmt.Errorf("reservation %s is %s", name, r.Status.State)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// remove deletes a set and its pods. Their holds stay.
func (k *kubelets) remove(ctx context.Context, s *appsv1.StatefulSet) error {
	if err := k.client.AppsV1().StatefulSets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	err := k.client.CoreV1().Pods(s.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "set=" + s.Name})
	if err != nil {
		return err
	}
	return within(ctx, limit, func() error {
		for i := range siblings {
			if o := k.get(podOf(s, i)); o.pod != nil {
				return fmt.Errorf("%s is still there", podOf(s, i))
			}
		}
		return nil
	})
}
