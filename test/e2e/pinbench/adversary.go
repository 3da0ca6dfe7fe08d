package pinbench

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// The hot node has the lowest score and passes all filters of the scheduler: it has a taint
// PreferNoSchedule, high and uneven requests, siblings of the pod, and not its image.
const (
	hot      = "node-0"
	image    = "bench/database:1"
	imageMiB = 900 // scores are full from 1000 MiB for a container on

	siblings = 8 // pods of a StatefulSet, half of which are recreated at a time
)

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func nodes(count int) []*corev1.Node {
	var all []*corev1.Node
	for i := range count {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname: nodeName(i), corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3)}}}
		n.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("32"),
			corev1.ResourceMemory: resource.MustParse("128Gi"), corev1.ResourcePods: resource.MustParse("110")}
		n.Status.Allocatable = n.Status.Capacity
		if n.Name == hot {
			n.Spec.Taints = []corev1.Taint{{Key: "bench/full-soon", Effect: corev1.TaintEffectPreferNoSchedule}}
		} else {
			n.Status.Images = []corev1.ContainerImage{{Names: []string{image}, SizeBytes: imageMiB << 20}}
		}
		all = append(all, n)
	}
	return all
}

// filler requests most of the hot node's CPUs and little of its memory.
func filler(namespace string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "filler"},
		Spec: corev1.PodSpec{NodeName: hot, Containers: containers("20", "1Gi")}}
}

func containers(cpu, memory string) []corev1.Container {
	return []corev1.Container{{Name: "main", Image: image,
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}}}}
}

// statefulSet returns a set whose first pods can only run on the hot node. After the patch release
// their successors can run on any node.
func statefulSet(namespace, name, mode string, spread bool) *appsv1.StatefulSet {
	labels := map[string]string{"set": name}
	annotations := map[string]string{policy.Annotation: "60m"}
	if needsManager(mode) {
		annotations[wellknown.AnnotationPin] = mode
	}
	replicas, no := int32(siblings), false
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			PodManagementPolicy: appsv1.ParallelPodManagement,
			// The controller creates successors from the newest template, and replaces no pods
			// itself.
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
				Spec: corev1.PodSpec{Containers: containers("500m", "256Mi"), AutomountServiceAccountToken: &no,
					NodeSelector: map[string]string{corev1.LabelHostname: hot}}}}}
	pod := &s.Spec.Template.Spec
	if spread {
		pod.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
			TopologyKey:       corev1.LabelHostname,
			WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: s.Spec.Selector}}
	}
	if mode == Reference {
		pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{hot}}}}}}}}
	}
	return s
}

// release is the JSON patch that removes the selector.
const release = `[{"op": "remove", "path": "/spec/template/spec/nodeSelector"}]`
