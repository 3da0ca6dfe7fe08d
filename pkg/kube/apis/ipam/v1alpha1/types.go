// Package v1alpha1 is the API group ipam.leasehold.dev/v1alpha1. An IPReservation shows the
// addresses that a node has reserved for a pod, a NodeAddressPool how many addresses a node has. An
// AddressRequest asks for addresses.
//
// +kubebuilder:object:generate=true
// +groupName=ipam.leasehold.dev
package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this API.
var GroupVersion = schema.GroupVersion{Group: "ipam.leasehold.dev", Version: "v1alpha1"}

// Resource is the resource of IPReservations.
var Resource = GroupVersion.WithResource("ipreservations")

// Labels of an IPReservation, for API servers that do not support field selectors (before
// Kubernetes 1.31).
const (
	// LabelNodeHash is the node's UID, by which its agent lists its reservations. Agents may set no
	// other value.
	LabelNodeHash = "leasehold.dev/node-hash"
	// LabelPodHash is a Hash of the pod's name; the pod's namespace is the object's.
	LabelPodHash = "leasehold.dev/pod-hash"
)

// AddToScheme registers the types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &IPReservation{}, &IPReservationList{}, &NodeAddressPool{}, &NodeAddressPoolList{},
		&AddressRequest{}, &AddressRequestList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// State is the state of the addresses.
// +kubebuilder:validation:Enum=Bound;Held
type State string

const (
	// Bound addresses belong to a sandbox.
	Bound State = "Bound"
	// Held addresses are reserved for a pod that is away.
	Held State = "Held"
)

// ReturnDelay is how long a pod must be away before its addresses are shown as Held. Most pods that
// are recreated have their addresses again before.
const ReturnDelay = 5 * time.Second

// IPReservation shows which addresses one node has reserved for one pod. Only the node's agent
// writes it. A missing IPReservation does not mean that there is no lease: the agent publishes it
// again as long as there is one.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ipreservations,singular=ipreservation,shortName=ipr,categories=leasehold
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.podName`
// +kubebuilder:printcolumn:name="For",type=string,JSONPath=`.status.reservation`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.addressList`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Held",type=string,JSONPath=`.status.addresses[?(@.state=="Held")].address`
// +kubebuilder:printcolumn:name="Held-Until",type=string,JSONPath=`.status.heldUntil`
// +kubebuilder:printcolumn:name="Window",type=string,priority=1,JSONPath=`.status.window`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(self.spec.release) || size(self.spec.release) == 0 || has(oldSelf.spec.release) && self.spec.release == oldSelf.spec.release || has(oldSelf.status) && has(oldSelf.status.id) && self.spec.release == oldSelf.status.id",message="spec.release is not the id of the lease (status.id)"
type IPReservation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec IPReservationSpec `json:"spec"`
	// +optional
	Status IPReservationStatus `json:"status,omitempty"`
}

// IPReservationSpec identifies the pod and the node. Users set release.
//
// +kubebuilder:validation:XValidation:rule="self.podName == oldSelf.podName && self.nodeName == oldSelf.nodeName && self.nodeUID == oldSelf.nodeUID",message="podName, nodeName and nodeUID cannot be changed"
type IPReservationSpec struct {
	// PodName is the pod's name; its namespace is the object's.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName"`
	// NodeName is the name of the node that has the addresses.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// NodeUID distinguishes a node from another with the same name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	NodeUID string `json:"nodeUID"`
	// Release releases the addresses if it is the id of the lease (status.id). No other id can be
	// set.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9a-f]{16})?$`
	Release string `json:"release,omitempty"`
}

// IPReservationStatus shows the lease in the node's store.
type IPReservationStatus struct {
	// ID is the id of the lease: 16 hexadecimal digits, generated when the pod first gets its
	// addresses and constant while it keeps them.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{16}$`
	ID string `json:"id,omitempty"`
	// State is Bound while a sandbox has one of the addresses, and Held while all are reserved for
	// a pod that is away. Each address has a state of its own.
	// +optional
	State State `json:"state,omitempty"`
	// Addresses are the pod's addresses, by network and interface, the first 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Addresses []Address `json:"addresses,omitempty"`
	// AddressList is the addresses separated by commas, for display.
	// +optional
	// +kubebuilder:validation:MaxLength=2944
	AddressList string `json:"addressList,omitempty"`
	// PodUID is the UID of the last pod that had the addresses.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	PodUID string `json:"podUID,omitempty"`
	// Reservation is the reservation name of the pod (annotation leasehold.dev/reserve-as). Held
	// addresses are for its next pod; if it is empty, for a pod of the same pod name.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reservation string `json:"reservation,omitempty"`
	// Window is how long the addresses stay reserved while the pod is away, as a Go duration, or
	// "forever".
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Window string `json:"window,omitempty"`
	// HeldUntil is when the reservation ends. It is not set while the pod runs, or if the window is
	// "forever".
	// +optional
	HeldUntil *metav1.Time `json:"heldUntil,omitempty"`
	// Confirmed is true when the sandbox has lived for 30 seconds or the pod was Ready: the pod can
	// start on this node.
	// +optional
	Confirmed bool `json:"confirmed,omitempty"`
}

// MaxAddresses is the largest number of addresses that an IPReservation shows.
const MaxAddresses = 64

// Address is one address of a pod.
type Address struct {
	// Network is the name of the CNI network.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Network string `json:"network"`
	// Interface is the name of the pod's interface.
	// +required
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface"`
	// Address is the IP address, without a prefix length.
	// +required
	// +kubebuilder:validation:MaxLength=45
	Address string `json:"address"`
	// State is Bound if a sandbox has the address, and Held if it is reserved for the pod: one of a
	// former interface is held beside those of a running pod until its window ends.
	// +optional
	State State `json:"state,omitempty"`
}

// IPReservationList is a list of IPReservations.
//
// +kubebuilder:object:root=true
type IPReservationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPReservation `json:"items"`
}
