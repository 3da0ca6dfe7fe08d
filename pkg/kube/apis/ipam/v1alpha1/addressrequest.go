package v1alpha1

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AddressRequestResource is the resource of AddressRequests.
var AddressRequestResource = GroupVersion.WithResource("addressrequests")

// AddressRequest asks for addresses for pods that may not exist yet. Users write its spec. Until
// the object is deleted or spec.for is over, the node whose ranges contain an address holds it for
// its pod, whenever the pod does not have it. An AddressRequest has an effect only in namespaces to
// which an administrator has allowed it (the limit "choose").
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=addressrequests,singular=addressrequest,shortName=areq,categories=leasehold
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="For",type=string,JSONPath=`.spec.for`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.addresses[*].address`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.addresses[*].state`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.addresses[*].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec AddressRequestSpec `json:"spec"`
	// +optional
	Status AddressRequestStatus `json:"status,omitempty"`
}

// AddressRequestSpec says which addresses are for which pods.
type AddressRequestSpec struct {
	// For is how long after the creation of the object its addresses are held, as a Go duration, or
	// "forever".
	// +optional
	// +kubebuilder:default=forever
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^(forever|([0-9]+(\.[0-9]+)?(s|m|h))+)$`
	For string `json:"for,omitempty"`
	// Wait is true if an address that is in use is to be held when it becomes free. Otherwise it is
	// rejected, until the spec changes.
	// +optional
	Wait bool `json:"wait,omitempty"`
	// Entries are the pods and their addresses, such as one for each ordinal of a StatefulSet.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Entries []AddressRequestEntry `json:"entries"`
}

// AddressRequestEntry is one pod and its addresses.
//
// +kubebuilder:validation:XValidation:rule="has(self.podName) != has(self.reservation)",message="either podName or reservation is required"
type AddressRequestEntry struct {
	// PodName is the name of the pod, which need not exist.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	PodName string `json:"podName,omitempty"`
	// Reservation is a reservation name (annotation leasehold.dev/reserve-as): one of its pods gets
	// the addresses.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Reservation string `json:"reservation,omitempty"`
	// Addresses are the addresses of the pod, one of each range set: an IPv4 and an IPv6 address,
	// if the nodes have both.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:items:Pattern=`^[0-9a-fA-F:.]+$`
	Addresses []string `json:"addresses"`
	// Interface is the name of the pod's interface; eth0, its first one, by default.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^\s/:.][^\s/:]*$`
	Interface string `json:"interface,omitempty"`
	// NodeName is the name of the node. It is required if several nodes have the same ranges.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
}

// AddressRequestStatus shows what became of each address.
type AddressRequestStatus struct {
	// Addresses are the addresses of the spec.
	// +optional
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=256
	Addresses []RequestedAddress `json:"addresses,omitempty"`
}

// RequestState is the state of a requested address.
// +kubebuilder:validation:Enum=Bound;Held;Waiting;Rejected;Expired
type RequestState string

const (
	// RequestBound addresses belong to their pod.
	RequestBound RequestState = "Bound"
	// RequestHeld addresses are held for their pod.
	RequestHeld RequestState = "Held"
	// RequestWaiting addresses are not held yet.
	RequestWaiting RequestState = "Waiting"
	// RequestRejected addresses are not held.
	RequestRejected RequestState = "Rejected"
	// RequestExpired addresses are not held any longer.
	RequestExpired RequestState = "Expired"
)

// RequestedAddress is the state of one address.
type RequestedAddress struct {
	// Address is the address as in the spec.
	// +required
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`
	// NodeName is the name of the node whose agent has written this. Without one, the manager has:
	// no node has the address, or its agent has not answered yet.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName,omitempty"`
	// +required
	State RequestState `json:"state"`
	// Reason is one word that says why the address is not held.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reason string `json:"reason,omitempty"`
	// Message explains the state and the reason.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// ObservedGeneration is the generation of the spec that this is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// AddressRequestList is a list of AddressRequests.
//
// +kubebuilder:object:root=true
type AddressRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AddressRequest `json:"items"`
}

// MaxRequested is the largest number of addresses in the status of an AddressRequest.
const MaxRequested = 256

// MergeStates returns the states to show in the status of a request: those of one writer, and of
// the shown ones, which have other addresses, those that it keeps. They are sorted by address.
func MergeStates(own, shown []RequestedAddress, keeps func(RequestedAddress) bool) []RequestedAddress {
	all := []RequestedAddress{}
	for i, a := range slices.Concat(own, shown) {
		isThere := func(o RequestedAddress) bool { return o.Address == a.Address }
		if (i < len(own) || keeps(a)) && len(all) < MaxRequested && !slices.ContainsFunc(all, isThere) {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b RequestedAddress) int { return strings.Compare(a.Address, b.Address) })
	return all
}
