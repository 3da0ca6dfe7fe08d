package publish

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
)

// poolPeriod is the time over which the agents watch their NodeAddressPools again after an outage
// of the API server (docs/decisions.md, "Cost that does not grow with the nodes").
const poolPeriod = 5 * time.Minute

// Pool watches the NodeAddressPool of a node, in which the manager names the reservations that the
// agent should read. It watches the object by its name.
type Pool struct {
	*informer.Informer[*ipamv1.NodeAddressPool]
	client rest.Interface
	node   string
}

// NewPool returns the Pool of a node. It is empty until Run has received the object.
func NewPool(client rest.Interface, node string) *Pool {
	view := func(p *ipamv1.NodeAddressPool) *ipamv1.NodeAddressPool {
		v := &ipamv1.NodeAddressPool{ObjectMeta: metaOf(p), Spec: p.Spec, Status: p.Status}
		v.OwnerReferences = p.OwnerReferences
		return v
	}
	return &Pool{informer.New(view, nil), client, node}
}

// Run watches the object until ctx is done. It returns ctx.Err().
func (p *Pool) Run(ctx context.Context) error {
	lw := cache.NewListWatchFromClient(p.client, ipamv1.NodeAddressPoolResource.Resource, metav1.NamespaceAll,
		fields.OneTermEqualSelector(metav1.ObjectNameField, p.node))
	return p.RunSpread(ctx, lw, "address pool of this node", poolPeriod)
}

// Object returns the object, nil if it does not exist or is not known yet.
func (p *Pool) Object() *ipamv1.NodeAddressPool {
	object, _ := p.Get(p.node)
	return object
}

// Named returns the reservations that the manager names.
func (p *Pool) Named() []ipamv1.ReservationReference {
	if object := p.Object(); object != nil {
		return object.Spec.Reservations
	}
	return nil
}
