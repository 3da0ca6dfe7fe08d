package nodepools

import (
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// One object never stops the others.
func TestReaders(t *testing.T) {
	fakeapi.Reader[*nodePool]{New: func() *kube.Informer[*nodePool] { return kube.NewInformer(viewPool, nil) },
		Kind: ipam.GroupVersion.WithKind("NodeAddressPool"), Good: &ipam.NodeAddressPool{}}.Test(t)
	fakeapi.Reader[*addressRequest]{
		New:  func() *kube.Informer[*addressRequest] { return newSpecReconciler(setOf(t), nil, nil, nil).requests },
		Kind: ipam.GroupVersion.WithKind("AddressRequest"), Good: &ipam.AddressRequest{}}.Test(t)
}
