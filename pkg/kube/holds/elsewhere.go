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

// elsewhere returns which of the pods live on another node: its agent says so, and the pod is there and Ready. The
// agent's word alone may be old, for its node may be down.
func (h *Holds) elsewhere(ctx context.Context, held map[live.Name][]lease.Lease) (map[live.Name]place, error) {
	var hashes []string
	for pod := range held {
		hashes = append(hashes, ipamv1.Hash(pod.Name))
	}
	slices.Sort(hashes)
	found := map[live.Name]place{}
	for some := range slices.Chunk(slices.Compact(hashes), listed) {
		objects, err := h.list(ctx, some)
		if err != nil {
			return nil, err
		}
		for pod, at := range Claims(h.Node, objects) {
			if len(held[pod]) == 0 {
				continue
			}
			is, err := h.lives(ctx, pod, at)
			if err != nil {
				return nil, err
			}
			if is {
				found[pod] = at
			}
		}
	}
	return found, nil
}

// Claims returns which pods other nodes say they have: in a sandbox that has proved itself.
func Claims(node string, objects []ipamv1.IPReservation) map[live.Name]place {
	claims := map[live.Name]place{}
	for _, r := range objects {
		s := r.Status
		if r.Spec.NodeName != node && s.State == ipamv1.Bound && s.Confirmed && s.PodUID != "" {
			claims[live.Name{Namespace: r.Namespace, Name: r.Spec.PodName}] = place{r.Spec.NodeName, s.PodUID}
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

// lives tells whether the pod is Ready in that place.
func (h *Holds) lives(ctx context.Context, name live.Name, at place) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	pod := &corev1.Pod{}
	err := h.Clients.Core.Get().Namespace(name.Namespace).Resource("pods").Name(name.Name).Do(ctx).Into(pod)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && pod.Spec.NodeName == at.node && nodepods.Of(pod).UID == at.uid && nodepods.IsReady(pod), err
}
