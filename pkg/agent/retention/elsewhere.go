package retention

import (
	"context"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// location is the UID of a pod and the node on which the pod runs. The zero value means no other
// node.
type location struct{ node, uid string }

// maxUnclaimed is the largest number of pods without a claim that one pass reads. A claim is an
// IPReservation of another node with a confirmed sandbox of the pod. There may be hundreds of pods
// without a claim whose addresses are held forever.
const maxUnclaimed = 20

// candidates returns the pods that may run on another node: the pods with a claim (see
// maxUnclaimed), the pods that were seen on another node before, and at most maxUnclaimed of the
// other pods whose addresses are held forever, chosen at random. The last group is read because no
// agent claims a pod whose annotation was removed.
func (h *Holds) candidates(
	held map[kube.Name][]lease.Lease, claims map[kube.Name][]location,
) []kube.Name {
	var now, later []kube.Name
	for pod, leases := range held {
		if _, isSeen := h.moved.of[pod]; isSeen || len(claims[pod]) > 0 {
			now = append(now, pod)
		} else if keptForever(leases) {
			later = append(later, pod)
		}
	}
	rand.Shuffle(len(later), func(i, j int) { later[i], later[j] = later[j], later[i] })
	return append(now, later[:min(maxUnclaimed, len(later))]...)
}

// keptForever reports whether a lease is held without end.
func keptForever(leases []lease.Lease) bool {
	return slices.ContainsFunc(leases, func(l lease.Lease) bool { return l.Hold == lease.Forever })
}

// movedTo returns the other node on which a pod is Ready, and the pod's UID. It returns the zero
// location if the pod is not Ready on another node. If none of the pod's holds is without end, the
// agent of the other node must also claim the pod with that UID, otherwise movedTo returns the zero
// location. A claim without the Ready pod is never enough, because the claim of a node that is down
// is not updated.
func (h *Holds) movedTo(
	ctx context.Context, pod kube.Name, leases []lease.Lease, claims []location, read consistency,
) (location, error) {
	at, err := h.readyOn(ctx, pod, read)
	if err != nil || at.node == h.Node || !keptForever(leases) && !slices.Contains(claims, at) {
		return location{}, err
	}
	return at, nil
}

// claims reads, from the watch cache, the reservations that the manager names in the namespaces of
// the held pods, and returns the locations at which other nodes' agents claim each pod.
func (h *Holds) claims(ctx context.Context,
	held map[kube.Name][]lease.Lease) (map[kube.Name][]location, error) {
	namespaces := map[string]bool{}
	for pod := range held {
		namespaces[pod.Namespace] = true
	}
	var objects []ipamv1.IPReservation
	for _, ref := range h.Named() {
		if !namespaces[ref.Namespace] {
			continue
		}
		r, err := kube.ReadReservation(ctx, h.Clients.IPAM, ref.Namespace, ref.Name, string(cached))
		if err != nil {
			return nil, err
		}
		if r != nil {
			objects = append(objects, *r)
		}
	}
	return claimsIn(h.Node, objects), nil
}

// claimsIn returns, for each pod, the locations at which other nodes' agents claim it, which is
// where an object is Bound and its sandbox is confirmed. A pod can have several, because the agent
// of a node that is down does not withdraw its claim.
func claimsIn(node string, objects []ipamv1.IPReservation) map[kube.Name][]location {
	claims := map[kube.Name][]location{}
	for _, r := range objects {
		s := r.Status
		if r.Spec.NodeName != node && s.State == ipamv1.Bound && s.Confirmed && s.PodUID != "" {
			pod := kube.Name{Namespace: r.Namespace, Name: r.Spec.PodName}
			claims[pod] = append(claims[pod], location{r.Spec.NodeName, s.PodUID})
		}
	}
	return claims
}

// consistency is the resource version in the options of a read.
type consistency string

const (
	cached consistency = "0" // from the API server's watch cache, which may be out of date
	latest consistency = ""  // from etcd
)

// readyOn returns the node and the UID of the pod if the pod is Ready. Otherwise, or if the pod
// does not exist, it returns the zero location.
func (h *Holds) readyOn(ctx context.Context, name kube.Name, read consistency) (location, error) {
	pod := &corev1.Pod{}
	options := metav1.GetOptions{ResourceVersion: string(read)}
	err := h.Clients.Core.Get().Timeout(kube.RequestTimeout).Namespace(name.Namespace).Resource("pods").Name(name.Name).
		VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(pod)
	if apierrors.IsNotFound(err) {
		return location{}, nil
	}
	if err != nil || !kube.IsReady(pod) {
		return location{}, err
	}
	return location{pod.Spec.NodeName, podOf(pod).UID}, nil
}
