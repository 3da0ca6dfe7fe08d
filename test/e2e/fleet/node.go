package fleet

import (
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Node is the part of a simulated node that is not in the API.
type Node struct {
	Name   string
	UID    string
	Addr   netip.Addr   // of the node; nothing listens there
	Subnet netip.Prefix // of its pods
	Dirs   store.Dirs
	dir    string
}

const subnetBits = 20

func (f *Fleet) newNode(i int, name string) (*Node, error) {
	subnet, ok := nthSubnet(f.Network, i, subnetBits)
	if !ok {
		return nil, errNoRoom
	}
	n := &Node{Name: name, Addr: subnet.Addr(), Subnet: subnet, dir: filepath.Join(f.Dir, name)}
	n.Dirs = store.Dirs{State: filepath.Join(n.dir, "state"), Run: filepath.Join(n.dir, "run")}
	for _, dir := range []string{n.Dirs.State, n.netns(), n.networks(), n.caches()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (n *Node) netns() string    { return filepath.Join(n.dir, "netns") }
func (n *Node) networks() string { return filepath.Join(n.dir, "networks") }
func (n *Node) caches() string   { return filepath.Join(n.dir, "results") }

// nthSubnet returns the i-th IPv4 subnet with the given prefix length, counted from 0.
func nthSubnet(of netip.Prefix, i, bits int) (netip.Prefix, bool) {
	a := of.Masked().Addr().As4()
	base := binary.BigEndian.Uint32(a[:])
	binary.BigEndian.PutUint32(a[:], base+uint32(i)<<(32-bits))
	p := netip.PrefixFrom(netip.AddrFrom4(a), bits)
	return p, of.Bits() <= bits && of.Contains(p.Addr())
}

// register creates the Node and its Lease.
func (f *Fleet) register(ctx context.Context, object *corev1.Node) error {
	n := f.nodes[object.Name]
	object = object.DeepCopy()
	now := metav1.Now()
	object.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.Addr.String()}}
	object.Status.NodeInfo.KubeletVersion = "v1.36.3"
	for kind, status := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		object.Status.Conditions = append(object.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "Simulated", LastHeartbeatTime: now, LastTransitionTime: now})
	}
	created, err := f.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	n.UID = string(created.UID)
	_, err = f.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx,
		newLease(object.Name), metav1.CreateOptions{})
	return err
}

func newLease(node string) *coordinationv1.Lease {
	now, seconds := metav1.NowMicro(), int32(40)
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now}}
}

// beat renews a node's Lease until ctx is done.
func (f *Fleet) beat(ctx context.Context, node string, first time.Duration) {
	leases := f.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for wait := first; pause(ctx, wait) == nil; wait = f.Heartbeat {
		lease, err := leases.Get(ctx, node, metav1.GetOptions{})
		if err == nil {
			lease.Spec.RenewTime = newLease(node).Spec.RenewTime
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		if err != nil {
			f.warn(ctx, "renewing the lease failed", "node", node, "error", err)
		}
	}
}
