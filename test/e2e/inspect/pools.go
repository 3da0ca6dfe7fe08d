package inspect

import (
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// NodeAddressPools is the resource in which the agents publish how many addresses their nodes have.
var NodeAddressPools = schema.GroupVersionResource{Group: "ipam.leasehold.dev", Version: "v1alpha1",
	Resource: "nodeaddresspools"}

// Counts are numbers of addresses.
type Counts struct{ Size, Bound, Held, Free int64 }

// NodeAddressPool is the object of a node.
type NodeAddressPool struct {
	Metadata metav1.ObjectMeta
	Status   struct {
		Counts
		Networks []struct {
			Counts
			Name, Active, Reason, Message string
		}
		Conditions []metav1.Condition
	}
}

// ReadNodeAddressPool returns the object of a node.
func ReadNodeAddressPool(ctx context.Context, client dynamic.Interface, node string) (p NodeAddressPool, err error) {
	object, err := client.Resource(NodeAddressPools).Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return p, err
	}
	data, err := object.MarshalJSON()
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(data, &p)
}

// Network returns the numbers of a network, and reports whether the object has it.
func (p NodeAddressPool) Network(name string) (c Counts, found bool) {
	for _, n := range p.Status.Networks {
		if n.Name == name {
			return n.Counts, true
		}
	}
	return c, false
}

// Pools returns what `leasectl -o json pools` prints of a network.
func Pools(ctx context.Context, node machine.Machine, leasectl, network string) (sets []Counts, err error) {
	err = runJSON(ctx, node, &sets, leasectl, "-o", "json", "pools", "--network="+network)
	return sets, err
}
