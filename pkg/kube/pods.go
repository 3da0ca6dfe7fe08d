package kube

import corev1 "k8s.io/api/core/v1"

// IsReady reports whether a pod's Ready condition is true.
func IsReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
