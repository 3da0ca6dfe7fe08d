package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeAddressPoolResource is the resource of NodeAddressPools.
var NodeAddressPoolResource = GroupVersion.WithResource("nodeaddresspools")

// ConditionRetentionActive is the type of the condition that says whether the container runtime of
// a node calls leasehold, so that addresses are retained there.
const ConditionRetentionActive = "RetentionActive"

// ConditionAddressesShared is the type of the condition that says that pods of another node may be
// on the same link and get the same addresses. It is absent where the manager has found none.
const ConditionAddressesShared = "AddressesShared"

// The reasons of the states of a network, or of the condition RetentionActive, that the manager
// writes: what the agent has written may not be true any more. The agent's next write replaces
// them.
const (
	// AgentMissing: unknown, the node has no pod of the agent. `kubectl -n leasehold-system
	// describe daemonset leasehold-agent` says why.
	AgentMissing = "AgentMissing"
	// AgentImageMissing: unknown, the node does not have the image of the agent.
	AgentImageMissing = "AgentImageMissing"
	// AgentNotReady: unknown, the agent's pod is not ready. `kubectl leasehold doctor` says why.
	AgentNotReady = "AgentNotReady"
	// NodeNotReady: unknown, the kubelet of the node is not ready.
	NodeNotReady = "NodeNotReady"
)

// Unconfirmed returns the condition of a NodeAddressPool with which the manager says that no agent
// confirms it, nil if there is none.
func Unconfirmed(conditions []metav1.Condition) *metav1.Condition {
	reasons := []string{AgentMissing, AgentImageMissing, AgentNotReady, NodeNotReady}
	for i, c := range conditions {
		isUnknown := c.Type == ConditionRetentionActive && c.Status == metav1.ConditionUnknown
		if isUnknown && slices.Contains(reasons, c.Reason) {
			return &conditions[i]
		}
	}
	return nil
}

// NodeAddressPool shows how many addresses one node has, and how many are in use. It has the name
// of the node, and is deleted with it. Only the node's agent writes its status, at most every 30 s,
// and only the manager its spec. If no agent of the node works, the manager sets the condition
// RetentionActive to Unknown.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nodeaddresspools,singular=nodeaddresspool,shortName=nap,scope=Cluster,categories=leasehold
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Bound",type=integer,JSONPath=`.status.bound`
// +kubebuilder:printcolumn:name="Held",type=integer,JSONPath=`.status.held`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=`.status.conditions[?(@.type=="RetentionActive")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeAddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec NodeAddressPoolSpec `json:"spec,omitempty"`
	// +optional
	Status NodeAddressPoolStatus `json:"status,omitempty"`
}

// MaxReservations is the largest number of reservations that a NodeAddressPool names.
const MaxReservations = 256

// NodeAddressPoolSpec says what the agent of the node should read. The agent watches this object by
// its name, which costs the API server the same however many nodes there are.
type NodeAddressPoolSpec struct {
	// Reservations are the IPReservations that the node's agent should read: its own ones that a
	// user has changed or deleted, and those of pods whose addresses the node holds, but that run
	// on another node. The manager writes them. To be named here has no other effect on a
	// reservation than that the agent reads it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Reservations []ReservationReference `json:"reservations,omitempty"`
	// Requests are the AddressRequests that the node's agent should read, because the node has some
	// of their addresses and their namespaces may choose. The manager writes them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Requests []RequestReference `json:"requests,omitempty"`
	// Shared are ranges of the node that another node has as well, where the pods of both may be on
	// one link, at most one for each range. The manager writes them, and the agent the condition
	// AddressesShared.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Shared []SharedRange `json:"shared,omitempty"`
}

// MaxShared is the largest number of shared ranges of a NodeAddressPool.
const MaxShared = 16

// SharedRange is the part of a range that another node has as well.
type SharedRange struct {
	// Start is the first address.
	// +required
	// +kubebuilder:validation:MaxLength=45
	Start string `json:"start"`
	// End is the last address.
	// +required
	// +kubebuilder:validation:MaxLength=45
	End string `json:"end"`
	// NodeName is the name of the other node.
	// +required
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
}

// RequestReference identifies a state of an AddressRequest, and the entries of it of which a node
// has the addresses.
type RequestReference struct {
	ReservationReference `json:",inline"`
	// Addresses are the first addresses of the entries whose addresses the manager found in the
	// ranges of this node, and of no other unless the request names this one.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=45
	Addresses []string `json:"addresses,omitempty"`
}

// ReservationReference identifies a state of an IPReservation, or of an AddressRequest (see
// RequestReference).
type ReservationReference struct {
	// Namespace is the namespace of the object.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name is the name of the object.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID is the UID of the object, which may have been deleted.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`
	// Generation is the generation of the object. The agent reads the object again when it changes.
	// +optional
	Generation int64 `json:"generation,omitempty"`
}

// NodeAddressPoolStatus shows the node's store. Its numbers are the sums of those of all networks.
type NodeAddressPoolStatus struct {
	AddressCounts `json:",inline"`

	// Networks are the networks that the container runtime has loaded, and others that have
	// addresses in use, by name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Networks []NetworkAddressPool `json:"networks,omitempty"`
	// Conditions: RetentionActive is True if the container runtime calls leasehold for every
	// network. AddressesShared is True if another node has the same addresses on the same link.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// AddressCounts are numbers of addresses. A pod gets one address of each range set of a network:
// the numbers are those of the set with the fewest free addresses, if there are several.
type AddressCounts struct {
	// Size is the number of addresses that can be assigned, at most 9223372036854775807. Before the
	// plugin was called once, it is that of the CNI configuration, if the ranges are there.
	// +optional
	Size *int64 `json:"size,omitempty"`
	// Bound is the number of addresses that belong to sandboxes.
	// +required
	Bound int64 `json:"bound"`
	// Held is the number of addresses that are reserved for pods that are away.
	// +required
	Held int64 `json:"held"`
	// Free is the number of addresses that are neither bound nor held. It includes those that were
	// released in the last minutes, which are assigned when no other is left. It is not set if the
	// size is not.
	// +optional
	Free *int64 `json:"free,omitempty"`
}

// NetworkAddressPool shows the addresses of one CNI network.
type NetworkAddressPool struct {
	// Name is the name of the CNI network.
	// +required
	// +kubebuilder:validation:MaxLength=255
	Name          string `json:"name"`
	AddressCounts `json:",inline"`
	// Ranges are the ranges of addresses from which pods get theirs, the first 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Ranges []AddressRange `json:"ranges,omitempty"`
	// Link is the type of the interface plugin and its device, such as "macvlan eth1", if pods of
	// other nodes may be on the same link: then no other node of the link may have these addresses.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Link string `json:"link,omitempty"`
	// Active is True if the container runtime calls leasehold for this network, False if it does
	// not, and Unknown if that cannot be determined.
	// +optional
	// +kubebuilder:validation:Enum="True";"False";Unknown
	Active metav1.ConditionStatus `json:"active,omitempty"`
	// Reason is one word that says why the network is not active, or why that is not known.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Reason string `json:"reason,omitempty"`
	// Message explains the reason, and what can be done.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// AddressRange is the first and the last address of a range.
type AddressRange struct {
	// Start is the first address.
	// +required
	// +kubebuilder:validation:MaxLength=45
	Start string `json:"start"`
	// End is the last address.
	// +required
	// +kubebuilder:validation:MaxLength=45
	End string `json:"end"`
	// Subnet is the subnet of the range, if it is known.
	// +optional
	// +kubebuilder:validation:MaxLength=49
	Subnet string `json:"subnet,omitempty"`
}

// MaxRanges is the largest number of ranges of a network in a NodeAddressPool.
const MaxRanges = 64

// MaxMessage is the largest length of a message in the status of a NodeAddressPool, in bytes.
const MaxMessage = 1024

// MaxNetworkName is the largest length of the name of a network, in bytes.
const MaxNetworkName = 255

// NodeAddressPoolList is a list of NodeAddressPools.
//
// +kubebuilder:object:root=true
type NodeAddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeAddressPool `json:"items"`
}
