package persistentpodstate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// One object never stops the others.
func TestReaders(t *testing.T) {
	empty := func() *clusterView { return newView(&Feature{kinds: kube.StatefulSets}, control.NewNodes()) }
	fakeapi.Reader[*stored]{New: func() *kube.Informer[*stored] { return empty().objects }, Kind: objectKind,
		Good: state()}.Test(t)
	fakeapi.Reader[*workloadPod]{New: func() *kube.Informer[*workloadPod] { return empty().pods },
		Kind: corev1.SchemeGroupVersion.WithKind("Pod"), Good: fakeapi.LargePod()}.Test(t)
	for _, kind := range kube.StatefulSets {
		fakeapi.Reader[*workload]{New: func() *kube.Informer[*workload] { return empty().workloads[kind.GroupKind()] },
			Kind: kind, Good: &workloadObject{}}.Test(t)
	}
}
