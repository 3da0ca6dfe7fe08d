package holds

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// place is where a pod lives.
type place struct{ node, uid string }

// listed is how many pods one list asks for.
const listed = 50

// elsewhere returns which of the pods live on another node: the pod is there and Ready, and where its hold will end by
// itself that node's agent says that it has addresses. The agent's word alone may be old, for its node may be down. What is
// kept forever waits for no word: a pod whose annotation was taken away is in nobody's.
func (h *Holds) elsewhere(ctx context.Context, held map[live.Name][]lease.Lease) (map[live.Name]place, error) {
	claims, err := h.claims(ctx, held)
	if err != nil {
		return nil, err
	}
	found := map[live.Name]place{}
	for pod, leases := range held {
		endless := slices.ContainsFunc(leases, func(l lease.Lease) bool { return l.Hold == lease.Forever })
		if !endless && len(claims[pod]) == 0 {
			continue
		}
		at, err := h.where(ctx, pod)
		if err != nil {
			return nil, err
		}
		if at.node != "" && at.node != h.Node && (endless || slices.Contains(claims[pod], at)) {
			found[pod] = at
		}
	}
	return found, nil
}

func (h *Holds) claims(ctx context.Context, held map[live.Name][]lease.Lease) (map[live.Name][]place, error) {
	var hashes []string
	for pod := range held {
		hashes = append(hashes, ipamv1.Hash(pod.Name))
	}
	slices.Sort(hashes)
	var objects []ipamv1.IPReservation
	for some := range slices.Chunk(slices.Compact(hashes), listed) {
		list, err := h.list(ctx, some)
		if err != nil {
			return nil, err
		}
		objects = append(objects, list...)
	}
	return Claims(h.Node, objects), nil
}

// Claims returns where other nodes say that they have a pod, in a sandbox that has proved itself. Several may say so: a
// node that is down does not take its word back.
func Claims(node string, objects []ipamv1.IPReservation) map[live.Name][]place {
	claims := map[live.Name][]place{}
	for _, r := range objects {
		s := r.Status
		if r.Spec.NodeName != node && s.State == ipamv1.Bound && s.Confirmed && s.PodUID != "" {
			pod := live.Name{Namespace: r.Namespace, Name: r.Spec.PodName}
			claims[pod] = append(claims[pod], place{r.Spec.NodeName, s.PodUID})
		}
	}
	return claims
}

func (h *Holds) list(ctx context.Context, hashes []string) ([]ipamv1.IPReservation, error) {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	one, err := labels.NewRequirement(ipamv1.LabelPodHash, selection.In, hashes)
	if err != nil {
		return nil, err
	}
	list := &ipamv1.IPReservationList{}
	// Any state of the last moments will do, from the server's memory.
	options := metav1.ListOptions{LabelSelector: labels.NewSelector().Add(*one).String(), ResourceVersion: "0"}
	err = h.Clients.IPAM.Get().Resource("ipreservations").VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
	return list.Items, err
}

// where tells where the pod is Ready; nowhere if it is not.
func (h *Holds) where(ctx context.Context, name live.Name) (place, error) {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	pod := &corev1.Pod{}
	err := h.Clients.Core.Get().Namespace(name.Namespace).Resource("pods").Name(name.Name).Do(ctx).Into(pod)
	if apierrors.IsNotFound(err) {
		return place{}, nil
	}
	if err != nil || !nodepods.IsReady(pod) {
		return place{}, err
	}
	return place{pod.Spec.NodeName, nodepods.Of(pod).UID}, nil
}
