package pin

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// One object never stops the others.
func TestReaders(t *testing.T) {
	core := corev1.SchemeGroupVersion
	empty := func() *cluster {
		view := func(p *corev1.Pod) *podView { return viewPod(p, nil) }
		none := func(*corev1.Pod) *control.Reservation { return nil }
		return emptyCluster(time.Now, view, control.NewReservations(none), control.NewNodes())
	}
	fakeapi.Reader[*podView]{New: func() *kube.Informer[*podView] { return empty().pods }, Kind: core.WithKind("Pod"),
		Good: fakeapi.LargePod()}.Test(t)
	fakeapi.Reader[map[string]string]{New: func() *kube.Informer[map[string]string] { return empty().namespaces },
		Kind: core.WithKind("Namespace"), Good: &corev1.Namespace{}}.Test(t)
}
