package inspect

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// IPReservations is the resource in which the agents publish their nodes' leases.
var IPReservations = schema.GroupVersionResource{Group: "ipam.leasehold.dev", Version: "v1alpha1",
	Resource: "ipreservations"}

// Reservation is an IPReservation.
type Reservation struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		PodName, NodeName, NodeUID, Release string
	}
	Status struct {
		ID        string
		State     string // Bound or Held
		Addresses []struct{ Network, Interface, Address string }
		PodUID    string
		Window    string
		HeldUntil *metav1.Time
		Confirmed bool
	}
}

// Reservations returns the reservations in a namespace.
func Reservations(ctx context.Context, client dynamic.Interface, namespace string) ([]Reservation, error) {
	list, err := client.Resource(IPReservations).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var found []Reservation
	for _, item := range list.Items {
		r, err := reservation(item)
		if err != nil {
			return nil, fmt.Errorf("reservation %s: %w", item.GetName(), err)
		}
		found = append(found, r)
	}
	return found, nil
}

func reservation(item unstructured.Unstructured) (r Reservation, err error) {
	data, err := item.MarshalJSON()
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

// IPs returns the reservation's addresses on an interface.
func (r Reservation) IPs(link string) []string {
	var ips []string
	for _, a := range r.Status.Addresses {
		if a.Interface == link {
			ips = append(ips, a.Address)
		}
	}
	return ips
}
