package persistentpodstate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// webhooks are those for pods and for PersistentPodStates.
type webhooks struct {
	view *clusterView
	role *role
	log  logr.Logger
}

// pod looks up the former node of a new pod, and modifies the pod with inject. It does nothing but
// reset if no PersistentPodState applies to the pod, or nothing is known of a predecessor. If the
// lookup fails, an annotation explains why.
func (w *webhooks) pod(_ context.Context, req admission.Request, pod *corev1.Pod) error {
	if !w.role.serving.Load() {
		return nil
	}
	required := reset(pod)
	target, owner := ownerTarget(pod)
	target.Namespace = req.Namespace // it may not be set in the pod yet
	if owner.Name == "" || pod.Name == "" || pod.Spec.NodeName != "" {
		return nil
	}
	if !w.view.HasSynced() {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationReason, "lookup failed: "+errNotSynced.Error())
		return nil
	}
	objects := w.view.Objects(target)
	if len(objects) == 0 || objects[0].object.DeletionTimestamp != nil {
		return nil
	}
	o := objects[0].objectOf(pod.Name)
	last := w.view.lastPod(podKey{target, pod.Name}, owner.UID)
	if uid := o.Status.TargetUID; uid != "" && uid != string(owner.UID) {
		o.Status.PodStates = nil // they belong to an earlier workload with the same name
	}
	former, known := findFormer(o, pod.Name, last, w.view.node)
	if !known {
		return nil
	}
	former.Required = required
	former.Lost = w.view.isLost(former.NodeName, pod)
	injected, reasons := inject(pod, o, former, w.view.present())
	w.log.V(1).Info("topology applied", "pod", req.Namespace+"/"+pod.Name, "object", o.Name, "node", former.NodeName,
		"injected", injected, "reasons", reasons)
	return nil
}

// object rewrites the spec of a PersistentPodState to its normal form, and denies what has none: a
// target of another kind than the configured ones, a second PersistentPodState with the same
// target, and invalid names of labels and annotations. A spec of which not all is used gets a
// warning.
func (w *webhooks) object(_ context.Context, req admission.Request) admission.Response {
	var o, old pps.PersistentPodState
	err := json.Unmarshal(req.Object.Raw, &o)
	isUpdate := req.Operation == admissionv1.Update
	if isUpdate {
		err = errors.Join(err, json.Unmarshal(req.OldObject.Raw, &old))
	}
	if err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("decoding the PersistentPodState: %w", err))
	}
	o.Namespace = req.Namespace
	// An object may be older than this webhook; its finalizers must stay removable.
	if !w.role.serving.Load() || isUpdate && equality.Semantic.DeepEqual(old.Spec, o.Spec) {
		return admission.Allowed("")
	}
	before, _ := json.Marshal(o) // what was decoded can be encoded
	var others []string
	if !isUpdate { // the target cannot change; of two existing ones the older is used
		for _, other := range w.view.Objects(targetOf(&o)) {
			if m := &other.object.ObjectMeta; m.Name != o.Name && m.DeletionTimestamp == nil {
				others = append(others, m.Name)
			}
		}
	}
	limited, isCut := limitSpec(&o.Spec)
	if !isCut {
		err = o.Spec.Normalize(&old.Spec)
		limited = o.Spec
	}
	if err == nil {
		err = validate(&pps.PersistentPodState{ObjectMeta: o.ObjectMeta, Spec: limited}, w.view.kinds, others)
	}
	if err != nil {
		return admission.Denied(err.Error())
	}
	if isCut {
		return admission.Allowed("").WithWarnings("spec: " + onlyTheFirst)
	}
	after, _ := json.Marshal(o)
	return admission.PatchResponseFromRaw(before, after)
}
