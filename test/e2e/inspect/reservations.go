package inspect

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

// Reservation is an IPReservation, in which the agents publish their nodes' leases.
type Reservation = v1alpha1.IPReservation

// Reservations returns the reservations in a namespace.
func Reservations(ctx context.Context, client dynamic.Interface, namespace string) ([]Reservation, error) {
	list, err := client.Resource(v1alpha1.Resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var found v1alpha1.IPReservationList
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(list.UnstructuredContent(), &found)
	return found.Items, err
}
