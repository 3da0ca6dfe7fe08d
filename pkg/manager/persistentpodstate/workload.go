package persistentpodstate

import (
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// targetKey identifies a workload. It has no API version, because references to one object may use
// different versions.
type targetKey struct {
	Kind            schema.GroupKind
	Namespace, Name string
}

func (t targetKey) String() string { return t.Kind.String() + " " + t.Namespace + "/" + t.Name }

// targetOf returns the target of a PersistentPodState: the workload whose pods it applies to.
func targetOf(o *pps.PersistentPodState) targetKey {
	t := o.Spec.TargetRef
	return targetKey{schema.FromAPIVersionAndKind(t.APIVersion, t.Kind).GroupKind(), o.Namespace, t.Name}
}

// ownerTarget returns the key of the workload that controls an object, and the owner reference.
// Both lack a name if there is none.
func ownerTarget(o metav1.Object) (targetKey, metav1.OwnerReference) {
	kind, owner := kube.ControllerOf(o)
	return targetKey{kind, o.GetNamespace(), owner.Name}, owner
}

// workload has the fields of a StatefulSet, or of a workload of a similar kind, that this package
// needs.
type workload struct {
	targetKey
	APIVersion  string
	UID         types.UID
	Created     time.Time
	Terminating bool
	Ordinals    kube.Ordinals
	// Wanted is the spec of the PersistentPodState that the annotations ask for, nil if they ask
	// for none. Problem explains to users why they ask without effect.
	Wanted  *pps.PersistentPodStateSpec
	Problem string
}

// A workloadObject is what is decoded of a workload of any kind.
type workloadObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	// Spec has the integers of a document in JSON as int64, as kube.OrdinalsOf reads them.
	Spec map[string]any `json:"spec"`
}

// DeepCopyObject implements runtime.Object.
func (o *workloadObject) DeepCopyObject() runtime.Object { c := *o; return &c }

// workloadOf returns the workload for an object of a kind. If the object has no replicas in its
// spec, the workload has all ordinals.
func workloadOf(o *workloadObject, kind schema.GroupVersionKind) *workload {
	set, _ := kube.OrdinalsOf(o.Spec, math.MaxInt64)
	w := &workload{
		targetKey:   targetKey{kind.GroupKind(), o.Namespace, o.Name},
		APIVersion:  kind.GroupVersion().String(),
		UID:         o.UID,
		Created:     o.CreationTimestamp.Time,
		Terminating: o.DeletionTimestamp != nil,
		Ordinals:    set,
	}
	if annotations := o.Annotations; annotations[pps.AnnotationGenerate] == "true" {
		wanted := wantedBy(annotations)
		wanted.TargetRef = pps.TargetReference{APIVersion: w.APIVersion, Kind: w.Kind.Kind, Name: w.Name}
		err := validateSpec(wanted)
		if err == nil && len(labelsOf(wanted)) == 0 {
			err = fmt.Errorf("%s is true, but neither %s nor %s names a node label",
				pps.AnnotationGenerate, pps.AnnotationRequiredTopology, pps.AnnotationPreferredTopology)
		}
		if err != nil {
			w.Problem = kube.Cut(err.Error(), kube.MaxNote)
		} else {
			w.Wanted = wanted
		}
	}
	return w
}

// ref returns a reference to the workload for Events.
func (w *workload) ref() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: w.APIVersion, Kind: w.Kind.Kind, Namespace: w.Namespace, Name: w.Name,
		UID: w.UID}
}

// wantedBy returns the spec that the annotations of a workload ask for.
func wantedBy(annotations map[string]string) *pps.PersistentPodStateSpec {
	s := &pps.PersistentPodStateSpec{}
	if keys := splitList(annotations[pps.AnnotationRequiredTopology]); len(keys) > 0 {
		s.RequiredPersistentTopology = new(pps.Term(keys...))
	}
	if keys := splitList(annotations[pps.AnnotationPreferredTopology]); len(keys) > 0 {
		s.PreferredPersistentTopology = []pps.PreferredTopologyTerm{{Weight: 100, Preference: pps.Term(keys...)}}
	}
	for _, key := range splitList(annotations[pps.AnnotationPodAnnotations]) {
		s.PersistentPodAnnotations = append(s.PersistentPodAnnotations, pps.PersistentPodAnnotation{Key: key})
	}
	_ = s.Normalize(nil) // removes duplicates: each term has two equal lists
	return s
}

// splitList splits a list at its commas, and removes spaces and empty elements. The elements do not
// keep the list in memory.
func splitList(list string) []string {
	var all []string
	for element := range strings.SplitSeq(list, ",") {
		if element = strings.TrimSpace(element); element != "" {
			all = append(all, strings.Clone(element))
		}
	}
	return all
}
