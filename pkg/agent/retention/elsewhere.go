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
// IPReservation of another node with a confirmed sandbox of the pod, which the manager names. There
// may be hundreds of pods without a claim whose addresses are held forever.
const maxUnclaimed = 20

// candidates returns the pods that may run on another node: the pods with a claim (see
// maxUnclaimed), the pods that were seen on another node before, and at most maxUnclaimed of the
// other pods whose addresses are held forever, chosen at random. The last group is read because no
// agent claims a pod whose annotation was removed.
//
// A claim is not read: it may be of a node that is down, so that it only is a reason to read the
// pod.
func (h *Holds) candidates(held map[kube.Name][]lease.Lease) []kube.Name {
	claimed := map[kube.Name]bool{}
	for _, ref := range h.Named() {
		claimed[kube.Name{Namespace: ref.Namespace, Name: ipamv1.PodOf(ref.Name)}] = true
	}
	var now, later []kube.Name
	for pod, leases := range held {
		if _, isSeen := h.moved.of[pod]; isSeen || claimed[pod] {
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

// consistency is the resource version in the options of a read.
type consistency string

const (
	cached consistency = "0" // from the API server's watch cache, which may be out of date
	latest consistency = ""  // from etcd
)

// movedTo returns the other node on which a pod is Ready, and the pod's UID. It returns the zero
// location if the pod is not Ready on another node.
func (h *Holds) movedTo(ctx context.Context, name kube.Name, read consistency) (location, error) {
	pod := &corev1.Pod{}
	options := metav1.GetOptions{ResourceVersion: string(read)}
	err := h.Clients.Core.Get().Timeout(kube.RequestTimeout).Namespace(name.Namespace).Resource("pods").Name(name.Name).
		VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(pod)
	if apierrors.IsNotFound(err) {
		return location{}, nil
	}
	if err != nil || !kube.IsReady(pod) || pod.Spec.NodeName == h.Node {
		return location{}, err
	}
	return location{pod.Spec.NodeName, podOf(pod).UID}, nil
}
