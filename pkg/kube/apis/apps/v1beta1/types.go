// Package v1beta1 is the API apps.kruise.io PersistentPodState, in both of its versions. They differ in one word: what
// v1beta1 calls keys, v1alpha1 calls nodeTopologyKeys. One schema takes both words in both versions, the CRD needs no
// conversion (DESIGN 7), and Normalize gives every stored object both, so that what is written in one version reads right
// in the other.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the version that is stored, and the one that this project speaks.
var GroupVersion = schema.GroupVersion{Group: "apps.kruise.io", Version: "v1beta1"}

// Alpha is the older version, whose objects are the same.
const Alpha = "v1alpha1"

// The annotations of a workload that ask for a PersistentPodState, and those of a pod that has been touched by one. Keys
// are joined by commas.
const (
	AnnotationGenerate          = "kruise.io/auto-generate-persistent-pod-state" // "true"
	AnnotationRequiredTopology  = "kruise.io/required-persistent-topology"
	AnnotationPreferredTopology = "kruise.io/preferred-persistent-topology"
	AnnotationPodAnnotations    = "kruise.io/persistent-pod-annotations"
	AnnotationInjected          = "kruise.io/injected-persistent-pod-state" // the object's name
)

// AddToScheme makes the types known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &PersistentPodState{}, &PersistentPodStateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// PersistentPodState has the recreated pods of a workload return to where they were.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=persistentpodstates,singular=persistentpodstate,shortName=pps
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.targetRef.kind`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.targetRef.name`
// +kubebuilder:printcolumn:name="Required",type=string,JSONPath=`.spec.requiredPersistentTopology.keys`
// +kubebuilder:printcolumn:name="Preferred",type=string,JSONPath=`.spec.preferredPersistentTopology[*].preference.keys`,priority=1
// +kubebuilder:printcolumn:name="Retention",type=string,JSONPath=`.spec.persistentPodStateRetentionPolicy`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PersistentPodState struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec PersistentPodStateSpec `json:"spec"`
	// +optional
	Status PersistentPodStateStatus `json:"status,omitempty"`
}

// PersistentPodStateSpec says whose pods return, and by which labels a node is known.
//
// +kubebuilder:validation:XValidation:rule="has(self.requiredPersistentTopology) || has(self.preferredPersistentTopology) && size(self.preferredPersistentTopology) > 0",message="requiredPersistentTopology and preferredPersistentTopology are both empty; at least one must name a node label"
type PersistentPodStateSpec struct {
	// TargetRef is the workload, which is in the object's namespace.
	// +required
	TargetRef TargetReference `json:"targetRef"`
	// PersistentPodAnnotations are restored on a recreated pod whose template does not have them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	PersistentPodAnnotations []PersistentPodAnnotation `json:"persistentPodAnnotations,omitempty"`
	// RequiredPersistentTopology are the node labels that a recreated pod must find again.
	// +optional
	RequiredPersistentTopology *NodeTopologyTerm `json:"requiredPersistentTopology,omitempty"`
	// PreferredPersistentTopology are the node labels that a recreated pod should find again.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	PreferredPersistentTopology []PreferredTopologyTerm `json:"preferredPersistentTopology,omitempty"`
	// PersistentPodStateRetentionPolicy: WhenScaled (the default) forgets a pod that was scaled down, WhenDeleted
	// remembers all until the workload is deleted.
	// +optional
	PersistentPodStateRetentionPolicy RetentionPolicy `json:"persistentPodStateRetentionPolicy,omitempty"`
}

// RetentionPolicy is when a pod's state is forgotten.
// +kubebuilder:validation:Enum=WhenScaled;WhenDeleted
type RetentionPolicy string

const (
	// WhenScaled is the default.
	WhenScaled RetentionPolicy = "WhenScaled"
	// WhenDeleted keeps what is known of pods that were scaled down.
	WhenDeleted RetentionPolicy = "WhenDeleted"
)

// TargetReference names a workload.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="self.kind == oldSelf.kind && self.name == oldSelf.name && self.apiVersion.split('/')[0] == oldSelf.apiVersion.split('/')[0]",message="targetRef cannot be changed; make another PersistentPodState"
type TargetReference struct {
	// APIVersion is the workload's, as apps/v1.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// Kind is the workload's: StatefulSet, or another whose pods have names that return.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// Name is the workload's.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// NodeTopologyTerm is a list of node labels, in either spelling.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="has(self.keys) || has(self.nodeTopologyKeys)",message="keys (v1beta1) or nodeTopologyKeys (v1alpha1) must name a node label"
// +kubebuilder:validation:XValidation:rule="!has(self.keys) || !has(self.nodeTopologyKeys) || self.keys == self.nodeTopologyKeys",message="keys and nodeTopologyKeys are two names of one list; give one of them"
type NodeTopologyTerm struct {
	// Keys are labels of nodes; v1alpha1 calls them nodeTopologyKeys.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=317
	Keys []string `json:"keys,omitempty"`
	// NodeTopologyKeys are the same as keys.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=317
	NodeTopologyKeys []string `json:"nodeTopologyKeys,omitempty"`
}

// PreferredTopologyTerm is a list of node labels and what they weigh.
type PreferredTopologyTerm struct {
	// Weight is from 1 to 100, as in the pod's affinity.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`
	// Preference is the list.
	// +required
	Preference NodeTopologyTerm `json:"preference"`
}

// PersistentPodAnnotation names an annotation of the pods.
type PersistentPodAnnotation struct {
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`
}

// PersistentPodStateStatus is what is known of the pods.
type PersistentPodStateStatus struct {
	// ObservedGeneration is the generation of the spec that podStates follow.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// TargetUID tells the workload from an earlier one of its name, whose pods are of no concern to it.
	// +optional
	TargetUID string `json:"targetUID,omitempty"`
	// PodStates are the pods by name.
	// +optional
	PodStates map[string]PodState `json:"podStates,omitempty"`
}

// PodState is where a pod was when it was last Ready.
type PodState struct {
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// NodeTopologyLabels are those of the labels in question that the node has.
	// +optional
	NodeTopologyLabels map[string]string `json:"nodeTopologyLabels,omitempty"`
	// Annotations are those of the annotations in question that the pod had.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PersistentPodStateList is a list of them.
//
// +kubebuilder:object:root=true
type PersistentPodStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PersistentPodState `json:"items"`
}
