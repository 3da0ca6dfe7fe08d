package persistentpodstate

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// action is what the generator does about the annotations of a workload. At most one of Create,
// Update and Delete is set. The zero value means that nothing is to be done.
type action struct {
	Create, Update, Delete *pps.PersistentPodState
	// Problem explains to users why the annotations have no effect. It is "" if there is no
	// problem.
	Problem string
}

// generate returns the action that makes the generated PersistentPodState match the annotations of
// a workload. A generated PersistentPodState has the name of its workload. workload is nil if it
// was deleted. object is the PersistentPodState with the name of the workload, nil if there is
// none. others are the names of further PersistentPodStates with the same target.
//
// If the workload was deleted, or does not ask for a PersistentPodState, the action deletes the
// generated one. PersistentPodStates that users created are never changed or deleted. Where one of
// them prevents the generation, the action is a Problem, or nothing if the user's object has the
// same name and target.
func generate(target targetKey, workload *workload, object *pps.PersistentPodState, others []string) action {
	if workload == nil || workload.Terminating || workload.Wanted == nil && workload.Problem == "" {
		if object != nil && isGenerated(object) && targetOf(object) == target && object.DeletionTimestamp == nil {
			return action{Delete: object}
		}
		return action{}
	}
	switch {
	case workload.Problem != "":
		return action{Problem: workload.Problem}
	case object == nil && len(others) > 0:
		return action{Problem: fmt.Sprintf("PersistentPodState %s has this workload as its target; none is generated",
			others[0])}
	case object == nil:
		return action{Create: generated(workload)}
	case object.DeletionTimestamp != nil:
		return action{} // the end of the deletion enqueues the workload again
	case targetOf(object) != target:
		return action{Problem: fmt.Sprintf("PersistentPodState %s has the target %s; none is generated", object.Name,
			targetOf(object))}
	case !isGenerated(object) && !isControlledBy(object, workload):
		return action{}
	}
	return update(object, generated(workload))
}

// update returns the action that changes the existing object to the wanted one. If they do not
// differ, it returns an action without effect.
func update(object, want *pps.PersistentPodState) action {
	updated := object.DeepCopy()
	updated.Spec.TargetRef = want.Spec.TargetRef
	updated.Spec.RequiredPersistentTopology = want.Spec.RequiredPersistentTopology
	updated.Spec.PreferredPersistentTopology = want.Spec.PreferredPersistentTopology
	updated.Spec.PersistentPodAnnotations = want.Spec.PersistentPodAnnotations
	updated.OwnerReferences = want.OwnerReferences
	metav1.SetMetaDataLabel(&updated.ObjectMeta, labelGenerated, generatedValue)
	if equality.Semantic.DeepEqual(object, updated) {
		return action{}
	}
	return action{Update: updated}
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
	return ref != nil && owner == targetOf(o) && ref.UID == w.UID
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
