// Package v1alpha1 is the API ipam.leasehold.dev/v1alpha1: IPReservation, what a node's agent says of the addresses that
// it keeps for a pod.
//
// +kubebuilder:object:generate=true
// +groupName=ipam.leasehold.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API's name.
var GroupVersion = schema.GroupVersion{Group: "ipam.leasehold.dev", Version: "v1alpha1"}

// Resource is IPReservation as clients ask for it.
var Resource = GroupVersion.WithResource("ipreservations")

// The labels by which reservations are found where field selectors do not serve (NAMES, Kubernetes).
const (
	// LabelNodeHash is hashed from the node's name.
	LabelNodeHash = "leasehold.dev/node-hash"
	// LabelPodHash is hashed from the pod's name; the namespace is the object's.
	LabelPodHash = "leasehold.dev/pod-hash"
)

// AddToScheme makes the types known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &IPReservation{}, &IPReservationList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// State is a lease's state.
// +kubebuilder:validation:Enum=Bound;Held
type State string

const (
	// Bound addresses belong to a sandbox.
	Bound State = "Bound"
	// Held addresses wait for their pod.
	Held State = "Held"
)

// IPReservation says which addresses one node has for one pod. The node's agent alone writes it. That it is absent says
// nothing: an agent publishes it again for as long as there is a lease.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ipreservations,singular=ipreservation,shortName=ipr,categories=leasehold
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.podName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.addressList`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Held-Until",type=string,JSONPath=`.status.heldUntil`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPReservation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec IPReservationSpec `json:"spec"`
	// +optional
	Status IPReservationStatus `json:"status,omitempty"`
}

// IPReservationSpec names the pod and the node, and carries what users ask for.
//
// +kubebuilder:validation:XValidation:rule="self.podName == oldSelf.podName && self.nodeName == oldSelf.nodeName && self.nodeUID == oldSelf.nodeUID",message="podName, nodeName and nodeUID cannot be changed"
type IPReservationSpec struct {
	// PodName is the pod's name; its namespace is the object's.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName"`
	// NodeName is the node that has the addresses.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// NodeUID tells a node from another of its name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	NodeUID string `json:"nodeUID"`
	// Release gives the addresses up: status.id of the lease that is meant. Another id is without effect.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{16})?$`
	Release string `json:"release,omitempty"`
}

// IPReservationStatus is what the node's store says.
type IPReservationStatus struct {
	// ID is the lease's: 16 hexadecimal digits, made when the pod first gets its addresses and kept while it keeps them.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{16}$`
	ID string `json:"id,omitempty"`
	// State is Bound while a sandbox has the addresses, and Held while they wait for the pod.
	// +optional
	State State `json:"state,omitempty"`
	// Addresses are the pod's addresses, by network and interface.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Addresses []Address `json:"addresses,omitempty"`
	// AddressList is the same for people, joined by commas.
	// +optional
	AddressList string `json:"addressList,omitempty"`
	// PodUID is the last pod that had the addresses.
	// +optional
	PodUID string `json:"podUID,omitempty"`
	// Window is how long the addresses wait for the pod, as a Go duration, or "forever".
	// +optional
	Window string `json:"window,omitempty"`
	// HeldUntil is when the wait ends; not set while the pod is there, or if the wait has no end.
	// +optional
	HeldUntil *metav1.Time `json:"heldUntil,omitempty"`
	// Confirmed: the sandbox has lived for 30 seconds or the pod is Ready, so the pod can start on this node.
	// +optional
	Confirmed bool `json:"confirmed,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Address is one address of a pod.
type Address struct {
	// Network is the name of the CNI network.
	// +required
	Network string `json:"network"`
	// Interface is the pod's interface.
	// +required
	Interface string `json:"interface"`
	// Address is the address, without a prefix length.
	// +required
	Address string `json:"address"`
}

// IPReservationList is a list of them.
//
// +kubebuilder:object:root=true
type IPReservationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPReservation `json:"items"`
}
