package kube

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// LimitsName is the name of the ConfigMap with the limits of namespaces. If it does not exist,
// there are none.
var LimitsName = Name{Namespace: Namespace, Name: "leasehold-limits"}

// LimitsField is the field selector of that ConfigMap.
var LimitsField = "metadata.name=" + LimitsName.Name

// NewLimits returns an informer of the limits.
func NewLimits() *Informer[policy.Limits] {
	return NewInformer(func(c *corev1.ConfigMap) policy.Limits { return c.Data }, nil)
}
