// Package v1beta1 is the PersistentPodState of the API group apps.kruise.io, in both of its
// versions. They differ in one field: what v1beta1 calls keys, v1alpha1 calls nodeTopologyKeys. One
// schema accepts both fields in both versions, so that the CRD needs no conversion webhook, and
// Normalize sets both in every stored object, so that clients of either version read what the other
// has written. The schema limits no list and no text, because Kruise's does not; readers use only
// the first of what is too long.
//
// +kubebuilder:object:generate=true
// +groupName=apps.kruise.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the storage version, and the one that leasehold reads and writes.
var GroupVersion = schema.GroupVersion{Group: "apps.kruise.io", Version: "v1beta1"}

// Annotations of a workload that ask for a PersistentPodState, and of a pod that one was applied
// to. Values that list keys separate them by commas.
const (
	// AnnotationGenerate is set to "true" on a workload, so that the manager creates a
	// PersistentPodState for it.
	AnnotationGenerate = "kruise.io/auto-generate-persistent-pod-state"
	// AnnotationRequiredTopology lists node labels, separated by commas, for
	// requiredPersistentTopology of the created PersistentPodState.
	AnnotationRequiredTopology = "kruise.io/required-persistent-topology"
	// AnnotationPreferredTopology lists node labels, separated by commas, for
	// preferredPersistentTopology of the created PersistentPodState.
	AnnotationPreferredTopology = "kruise.io/preferred-persistent-topology"
	// AnnotationPodAnnotations lists keys of annotations, separated by commas, for
	// persistentPodAnnotations of the created PersistentPodState.
	AnnotationPodAnnotations = "kruise.io/persistent-pod-annotations"
	// AnnotationInjected is set on a pod. Its value is the name of the PersistentPodState that
	// applies to it.
	AnnotationInjected = "kruise.io/injected-persistent-pod-state"
)

// AddToScheme registers the types.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &PersistentPodState{}, &PersistentPodStateList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// PersistentPodState makes the recreated pods of a workload return to nodes like those they ran on.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=persistentpodstates,singular=persistentpodstate,shortName=pps
// +kubebuilder:metadata:labels="app.kubernetes.io/name=persistentpodstates"
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

// PersistentPodStateSpec selects the workload and the node labels that identify where its pods ran.
//
// +kubebuilder:validation:XValidation:rule="has(self.requiredPersistentTopology) || has(self.preferredPersistentTopology) && size(self.preferredPersistentTopology) > 0",message="requiredPersistentTopology and preferredPersistentTopology are both empty; at least one must name a node label"
type PersistentPodStateSpec struct {
	// TargetRef is the workload, in the namespace of the PersistentPodState.
	// +required
	TargetRef TargetReference `json:"targetRef"`
	// PersistentPodAnnotations are restored on a recreated pod whose template does not have them.
	// +optional
	// +listType=atomic
	PersistentPodAnnotations []PersistentPodAnnotation `json:"persistentPodAnnotations,omitempty"`
	// RequiredPersistentTopology lists the node labels whose values the new node must share with
	// the former one.
	// +optional
	RequiredPersistentTopology *NodeTopologyTerm `json:"requiredPersistentTopology,omitempty"`
	// PreferredPersistentTopology lists the node labels whose values the new node should share with
	// the former one.
	// +optional
	// +listType=atomic
	PreferredPersistentTopology []PreferredTopologyTerm `json:"preferredPersistentTopology,omitempty"`
	// PersistentPodStateRetentionPolicy is WhenScaled (the default), which removes the state of a
	// pod that was scaled down, or WhenDeleted, which keeps all states until the workload is
	// deleted.
	// +optional
	PersistentPodStateRetentionPolicy RetentionPolicy `json:"persistentPodStateRetentionPolicy,omitempty"`
}

// RetentionPolicy says when the state of a pod is removed.
// +kubebuilder:validation:Enum=WhenScaled;WhenDeleted
type RetentionPolicy string

const (
	// WhenScaled removes the state of a pod that was scaled down. It is the default.
	WhenScaled RetentionPolicy = "WhenScaled"
	// WhenDeleted keeps all states until the workload is deleted.
	WhenDeleted RetentionPolicy = "WhenDeleted"
)

// TargetReference names a workload.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="self.kind == oldSelf.kind && self.name == oldSelf.name && self.apiVersion.split('/')[0] == oldSelf.apiVersion.split('/')[0]",message="targetRef cannot be changed; make another PersistentPodState"
type TargetReference struct {
	// APIVersion is the API version of the workload, such as apps/v1.
	// +required
	// +kubebuilder:validation:MinLength=1
	APIVersion string `json:"apiVersion"`
	// Kind is the kind of the workload: StatefulSet, or another whose pods keep their names.
	// +required
	// +kubebuilder:validation:MinLength=1
	Kind string `json:"kind"`
	// Name is the name of the workload.
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// NodeTopologyTerm is a list of node labels, under either of its two names.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="has(self.keys) || has(self.nodeTopologyKeys)",message="keys (v1beta1) or nodeTopologyKeys (v1alpha1) must name a node label"
type NodeTopologyTerm struct {
	// Keys are the keys of node labels; v1alpha1 calls them nodeTopologyKeys.
	// +optional
	// +listType=atomic
	Keys []string `json:"keys,omitempty"`
	// NodeTopologyKeys are the same as keys.
	// +optional
	// +listType=atomic
	NodeTopologyKeys []string `json:"nodeTopologyKeys,omitempty"`
}

// PreferredTopologyTerm is a list of node labels with a weight.
type PreferredTopologyTerm struct {
	// Weight is from 1 to 100, as in a pod's node affinity.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight"`
	// Preference is the list of node labels.
	// +required
	Preference NodeTopologyTerm `json:"preference"`
}

// PersistentPodAnnotation is the key of an annotation.
type PersistentPodAnnotation struct {
	// Key is the key of the annotation.
	// +required
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`
}

// PersistentPodStateStatus is the recorded state of the pods.
type PersistentPodStateStatus struct {
	// ObservedGeneration is the generation of the spec that podStates were recorded for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// TargetUID is the UID of the workload. States of an earlier workload with the same name are
	// not used.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	TargetUID string `json:"targetUID,omitempty"`
	// PodStates are the states by pod name.
	// +optional
	PodStates map[string]PodState `json:"podStates,omitempty"`
}

// PodState records where a pod was when it was last Ready.
type PodState struct {
	// NodeName is the name of the node.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// NodeTopologyLabels are the values of the spec's node labels on the node.
	// +optional
	NodeTopologyLabels map[string]string `json:"nodeTopologyLabels,omitempty"`
	// Annotations are the values of the spec's annotations on the pod.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// PersistentPodStateList is a list of PersistentPodStates.
//
// +kubebuilder:object:root=true
type PersistentPodStateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PersistentPodState `json:"items"`
}
