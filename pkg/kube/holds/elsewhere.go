package holds

import (
	"cmp"
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

// turns is how many pods that no agent claims and nobody has seen elsewhere a pass asks for. There may be hundreds that are
// kept forever, for as long.
const turns = 20

// suspects returns the pods that may live on another node: those that another node's agent claims, those that were seen
// there, and, by turns, those for which something is kept forever: a pod whose annotation was taken away is in nobody's word.
func (h *Holds) suspects(held map[live.Name][]lease.Lease, claims map[live.Name][]place, seen map[live.Name]sight) []live.Name {
	var now, later []live.Name
	for pod, leases := range held {
		if _, is := seen[pod]; is || len(claims[pod]) > 0 {
			now = append(now, pod)
		} else if isEndless(leases) {
			later = append(later, pod)
		}
	}
	slices.SortFunc(later, order)
	first, found := slices.BinarySearchFunc(later, h.turn, order)
	if found {
		first++
	}
	later = slices.Concat(later[first:], later[:first])
	later = later[:min(turns, len(later))]
	if len(later) > 0 {
		h.turn = later[len(later)-1]
	}
	return append(now, later...)
}

func order(a, b live.Name) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func isEndless(leases []lease.Lease) bool {
	return slices.ContainsFunc(leases, func(l lease.Lease) bool { return l.Hold == lease.Forever })
}

// elsewhere tells on which other node a pod lives; nowhere if it is not known to: the pod is there and Ready, and where its
// hold will end by itself that node's agent says that it has addresses. The agent's word alone may be old, for its node may
// be down. What is kept forever waits for no word.
func (h *Holds) elsewhere(ctx context.Context, pod live.Name, leases []lease.Lease, claims []place, as state) (place, error) {
	at, err := h.where(ctx, pod, as)
	if err != nil || at.node == h.Node || !isEndless(leases) && !slices.Contains(claims, at) {
		return place{}, err
	}
	return at, nil
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
	options := metav1.ListOptions{LabelSelector: labels.NewSelector().Add(*one).String(), ResourceVersion: string(recent)}
	err = h.Clients.IPAM.Get().Resource("ipreservations").VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
	return list.Items, err
}

// state is the resource version that is asked for.
type state string

const (
	recent state = "0" // from the server's memory, and as old as that is
	latest state = ""
)

// where tells where the pod is Ready; nowhere if it is not.
func (h *Holds) where(ctx context.Context, name live.Name, as state) (place, error) {
	ctx, cancel := context.WithTimeout(ctx, live.RequestTimeout)
	defer cancel()
	pod := &corev1.Pod{}
	options := metav1.GetOptions{ResourceVersion: string(as)}
	err := h.Clients.Core.Get().Namespace(name.Namespace).Resource("pods").Name(name.Name).
		VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(pod)
	if apierrors.IsNotFound(err) {
		return place{}, nil
	}
	if err != nil || !nodepods.IsReady(pod) {
		return place{}, err
	}
	return place{pod.Spec.NodeName, nodepods.Of(pod).UID}, nil
}
