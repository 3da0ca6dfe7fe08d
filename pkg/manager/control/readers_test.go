package control

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// One object never stops the others.
func TestReaders(t *testing.T) {
	fakeapi.Reader[*corev1.Node]{New: NewNodes, Kind: corev1.SchemeGroupVersion.WithKind("Node"), Good: &corev1.Node{}}.
		Test(t)
	fakeapi.Reader[*Reservation]{
		New:  func() *kube.Informer[*Reservation] { return NewReservations(viewReservation).Informer },
		Kind: ipam.GroupVersion.WithKind("IPReservation"), Good: &ipam.IPReservation{}}.Test(t)
	fakeapi.Reader[*nodePool]{New: func() *kube.Informer[*nodePool] { return setOf(nil).pools },
		Kind: ipam.GroupVersion.WithKind("NodeAddressPool"), Good: &ipam.NodeAddressPool{}}.Test(t)
	fakeapi.Reader[*ipam.AddressRequest]{
		New:  func() *kube.Informer[*ipam.AddressRequest] { return newPoolReconciler(setOf(nil), nil, nil).requests },
		Kind: ipam.GroupVersion.WithKind("AddressRequest"), Good: &ipam.AddressRequest{}}.Test(t)
}
