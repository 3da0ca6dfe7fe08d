package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// publish makes the API say what the node's store says of its pods' leases, at each change until ctx ends.
//
// TODO: a stand-in until the agent's own publishing code (pkg/kube/publish) can be called here.
func (f *Fleet) publish(ctx context.Context, n *Node) {
	for {
		select {
		case <-n.changes:
			f.publishNow(ctx, n)
		case <-ctx.Done():
			return
		}
	}
}

// change says that the node's store has changed.
func (n *Node) change() {
	select {
	case n.changes <- struct{}{}:
	default:
	}
}

func (f *Fleet) publishNow(ctx context.Context, n *Node) {
	wanted, err := reservations(ctx, n)
	if err != nil {
		f.warn(ctx, "%s: %v", n.Name, err)
		return
	}
	for _, r := range wanted {
		key := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
		if n.published[key] == fmt.Sprint(r.Status) {
			continue
		}
		if err := f.upsert(ctx, r); err != nil {
			if !apierrors.IsNotFound(err) { // the namespace is going away
				f.warn(ctx, "%s: publishing %s: %v", n.Name, key, err)
			}
			continue
		}
		n.published[key] = fmt.Sprint(r.Status)
	}
}

func (f *Fleet) upsert(ctx context.Context, r *v1alpha1.IPReservation) error {
	status := r.Status
	err := f.reservations.Get(ctx, client.ObjectKeyFromObject(r), r)
	if apierrors.IsNotFound(err) {
		err = f.reservations.Create(ctx, r)
	}
	if err != nil {
		return err
	}
	r.Status = status
	return f.reservations.Status().Update(ctx, r)
}

// reservations are the published objects of a node's leases with a window, by the store.
func reservations(ctx context.Context, n *Node) ([]*v1alpha1.IPReservation, error) {
	here, err := env.Read(func(string) string { return "" })
	if err != nil {
		return nil, err
	}
	now := here.Clock()
	now.BootID = here.Host.BootID()
	var all []*v1alpha1.IPReservation
	err = store.New(n.Dirs).View(ctx, func(tx *store.Tx) error {
		all = nil
		tx.All(func(l lease.Lease, err error) bool {
			if err == nil && l.Name != "" && l.Window > 0 && (l.State == lease.Bound || l.Firm) {
				all = append(all, reservation(n, l, now))
			}
			return true
		})
		return nil
	})
	return all, err
}

func reservation(n *Node, l lease.Lease, now lease.Instant) *v1alpha1.IPReservation {
	r := &v1alpha1.IPReservation{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: v1alpha1.ObjectName(l.Name, n.UID), Labels: map[string]string{
			v1alpha1.LabelNodeHash: v1alpha1.Hash(n.Name), v1alpha1.LabelPodHash: v1alpha1.Hash(l.Name)}},
		Spec: v1alpha1.IPReservationSpec{PodName: l.Name, NodeName: n.Name, NodeUID: n.UID},
		Status: v1alpha1.IPReservationStatus{ID: l.ID, State: v1alpha1.Bound, PodUID: l.UID, Window: l.Window.String(),
			Confirmed: true, AddressList: l.Address.String(),
			Addresses: []v1alpha1.Address{{Network: l.Pool.Network, Interface: l.Holder.IfName, Address: l.Address.String()}}},
	}
	if l.State == lease.Held {
		r.Status.State = v1alpha1.Held
		if until := l.Until(now); !until.IsZero() {
			t := metav1.NewTime(until)
			r.Status.HeldUntil = &t
		}
	}
	return r
}

// Reserved lists what the API shows of a namespace's reservations, as "pod node state" in order.
func (f *Fleet) Reserved(ctx context.Context, namespace string) ([]string, error) {
	var list v1alpha1.IPReservationList
	if err := f.reservations.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	var lines []string
	for _, r := range list.Items {
		lines = append(lines, strings.Join([]string{r.Spec.PodName, r.Spec.NodeName, string(r.Status.State)}, " "))
	}
	slices.Sort(lines)
	return lines, nil
}
