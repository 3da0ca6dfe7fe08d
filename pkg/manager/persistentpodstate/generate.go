package persistentpodstate

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// generate returns the PersistentPodState that should exist instead of object: object itself if it
// stays as it is, and nil if there should be none. A generated PersistentPodState has the name of
// its workload. workload is nil if it was deleted. object is the PersistentPodState with the name
// of the workload, nil if there is none. others are the names of further PersistentPodStates with
// the same target. problem explains to users why the annotations of the workload have no effect; it
// is "" if there is no problem.
//
// If the workload was deleted, or does not ask for a PersistentPodState, there should be no
// generated one. PersistentPodStates that users created stay. Where one of them prevents the
// generation, there is a problem, unless the user's object has the same name and target.
func generate(target targetKey, workload *workload, object *pps.PersistentPodState, others []string,
) (want *pps.PersistentPodState, problem string) {
	if workload == nil || workload.Terminating || workload.Wanted == nil && workload.Problem == "" {
		if object != nil && isGenerated(object) && targetOf(object) == target && object.DeletionTimestamp == nil {
			return nil, ""
		}
		return object, ""
	}
	switch {
	case workload.Problem != "":
		return object, workload.Problem
	case object == nil && len(others) > 0:
		return nil, fmt.Sprintf("PersistentPodState %s has this workload as its target; none is generated", others[0])
	case object == nil:
		return generated(workload), ""
	case object.DeletionTimestamp != nil:
		return object, "" // the end of the deletion enqueues the workload again
	case targetOf(object) != target:
		return object, fmt.Sprintf("PersistentPodState %s has the target %s; none is generated", object.Name,
			targetOf(object))
	case !isGenerated(object) && !isControlledBy(object, workload):
		return object, ""
	}
	return updated(object, generated(workload)), ""
}

// updated returns an object, which has the same target, with what the generator writes, from the
// wanted one. It returns the object itself if it has all of that.
func updated(object, want *pps.PersistentPodState) *pps.PersistentPodState {
	o := object.DeepCopy()
	o.Spec.RequiredPersistentTopology = want.Spec.RequiredPersistentTopology
	o.Spec.PreferredPersistentTopology = want.Spec.PreferredPersistentTopology
	o.Spec.PersistentPodAnnotations = want.Spec.PersistentPodAnnotations
	o.OwnerReferences = want.OwnerReferences
	metav1.SetMetaDataLabel(&o.ObjectMeta, labelGenerated, generatedValue)
	if equality.Semantic.DeepEqual(object, o) {
		return object
	}
	return o
}

// isGenerated reports whether the object has the label of generated objects: the generator created
// it, or has updated an object that the workload controls.
func isGenerated(o *pps.PersistentPodState) bool {
	return o.Labels[labelGenerated] == generatedValue
}

// isControlledBy reports whether the workload w is both the target and the controller of an object.
// Kruise generates such objects, but users may create them too. While the workload asks for a
// generated object, such an object is updated and labelled as generated.
func isControlledBy(o *pps.PersistentPodState, w *workload) bool {
	owner, ref := ownerTarget(o)
	return ref.Name != "" && owner == targetOf(o) && ref.UID == w.UID
}

// generated returns the object that a workload's annotations ask for.
func generated(w *workload) *pps.PersistentPodState {
	return &pps.PersistentPodState{Spec: *w.Wanted.DeepCopy(), ObjectMeta: metav1.ObjectMeta{
		Namespace: w.Namespace,
		Name:      w.Name,
		Labels:    map[string]string{labelGenerated: generatedValue},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: w.APIVersion, Kind: w.Kind.Kind, Name: w.Name, UID: w.UID, Controller: new(true)}},
	}}
}
