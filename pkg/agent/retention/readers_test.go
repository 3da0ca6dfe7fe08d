package retention

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// One object never stops the others.
func TestReaders(t *testing.T) {
	core := corev1.SchemeGroupVersion
	fakeapi.Reader[Pod]{New: func() *kube.Informer[Pod] { return NewPods(nil, "node1").Informer },
		Kind: core.WithKind("Pod"), Good: fakeapi.LargePod()}.Test(t)
	fakeapi.Reader[policy.Limits]{New: func() *kube.Informer[policy.Limits] { return NewLimits(nil).Informer },
		Kind: core.WithKind("ConfigMap"), Good: &corev1.ConfigMap{},
		Limit: 2 << 20}.Test(t) // the only one
}
