package retention

import (
	"time"

	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Limits are the limits of namespaces (policy.Limits), in a ConfigMap. If it does not exist, there
// are no limits.
type Limits = kube.NodeInformer[policy.Limits]

// NewLimits returns the Limits. They are not known until Run has received a list.
func NewLimits(core rest.Interface) *Limits {
	i := kube.NewLimits()
	return &Limits{Informer: i, What: "limits of namespaces", Period: 10 * time.Minute,
		ListWatch: i.ListWatch(core, "configmaps", kube.LimitsName.Namespace, "", kube.LimitsField)}
}
