package topology

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/meta"
)

// Action is what to do for a workload's annotations. At most one of the objects is set.
type Action struct {
	Create, Update, Delete *pps.PersistentPodState
	// Problem says for people why the annotations have no effect; "" if they have.
	Problem string
}

// Generate compares what a workload's annotations ask for with the object of its name, and with the others that have it
// as their target. The workload is nil when it is gone, the object nil when there is none. What a person made is never
// touched (FIELD, P11).
func Generate(target Target, workload *Workload, object *pps.PersistentPodState, others []string) Action {
	if workload == nil || workload.Leaving || workload.Annotations[pps.AnnotationGenerate] != "true" {
		if object != nil && labelled(object) && targetOf(object) == target && object.DeletionTimestamp == nil {
			return Action{Delete: object}
		}
		return Action{}
	}
	want, err := generated(workload)
	switch {
	case err != nil:
		return Action{Problem: err.Error()}
	case object == nil && len(others) > 0:
		return Action{Problem: fmt.Sprintf("PersistentPodState %s is for it already; none is generated", others[0])}
	case object == nil:
		return Action{Create: want}
	case object.DeletionTimestamp != nil:
		return Action{} // its end is the next occasion
	case !labelled(object) && !controlled(object, workload):
		if targetOf(object) != target {
			return Action{Problem: fmt.Sprintf("PersistentPodState %s is somebody's, for %s; none is generated", object.Name, targetOf(object))}
		}
		return Action{}
	case targetOf(object) != target:
		return Action{Problem: fmt.Sprintf("PersistentPodState %s was generated for %s; none is generated", object.Name, targetOf(object))}
	}
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.UID != workload.UID {
		// It was made for an earlier workload of that name, whose pods are of no concern to this one.
		return Action{Delete: object}
	}
	updated := object.DeepCopy()
	updated.Spec.TargetRef = want.Spec.TargetRef
	updated.Spec.RequiredPersistentTopology = want.Spec.RequiredPersistentTopology
	updated.Spec.PreferredPersistentTopology = want.Spec.PreferredPersistentTopology
	updated.Spec.PersistentPodAnnotations = want.Spec.PersistentPodAnnotations
	updated.OwnerReferences = want.OwnerReferences
	metav1.SetMetaDataLabel(&updated.ObjectMeta, meta.LabelGenerated, meta.Generated)
	if equal(object, updated) {
		return Action{}
	}
	return Action{Update: updated}
}

// labelled tells whether an object was made for annotations, or taken over for them.
func labelled(o *pps.PersistentPodState) bool { return o.Labels[meta.LabelGenerated] == meta.Generated }

// controlled tells whether a workload controls an object that is about it. That is how Kruise makes them; so may a person.
// While the workload asks for one it is taken for generated, and labelled.
func controlled(o *pps.PersistentPodState, w *Workload) bool {
	owner, ref := ownerTarget(o)
	return ref != nil && owner == targetOf(o) && ref.UID == w.UID
}

// generated is the object that a workload's annotations ask for.
func generated(w *Workload) (*pps.PersistentPodState, error) {
	o := &pps.PersistentPodState{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.Namespace,
		Name:      w.Name,
		Labels:    map[string]string{meta.LabelGenerated: meta.Generated},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: w.APIVersion, Kind: w.Kind.Kind, Name: w.Name, UID: w.UID, Controller: new(true)}},
	}}
	o.Spec.TargetRef = pps.TargetReference{APIVersion: w.APIVersion, Kind: w.Kind.Kind, Name: w.Name}
	if keys := words(w.Annotations[pps.AnnotationRequiredTopology]); len(keys) > 0 {
		o.Spec.RequiredPersistentTopology = new(pps.Term(keys...))
	}
	if keys := words(w.Annotations[pps.AnnotationPreferredTopology]); len(keys) > 0 {
		o.Spec.PreferredPersistentTopology = []pps.PreferredTopologyTerm{{Weight: 100, Preference: pps.Term(keys...)}}
	}
	for _, key := range words(w.Annotations[pps.AnnotationPodAnnotations]) {
		o.Spec.PersistentPodAnnotations = append(o.Spec.PersistentPodAnnotations, pps.PersistentPodAnnotation{Key: key})
	}
	if len(labelsOf(&o.Spec)) == 0 {
		return nil, fmt.Errorf("%s is true, but neither %s nor %s names a node label", pps.AnnotationGenerate,
			pps.AnnotationRequiredTopology, pps.AnnotationPreferredTopology)
	}
	return o, ValidateSpec(&o.Spec)
}

// words splits a list at its commas; each word counts once.
func words(list string) []string {
	var all []string
	for word := range strings.SplitSeq(list, ",") {
		if word = strings.TrimSpace(word); word != "" && !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}
