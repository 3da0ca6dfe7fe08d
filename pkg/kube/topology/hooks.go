package topology

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/meta"
)

// binder is the webhook of pods. Whatever goes wrong, it admits the pod, and says so on it (FIELD, P7 and P16).
type binder struct {
	view    *View
	release bool
	log     logr.Logger
}

func (b *binder) Handle(ctx context.Context, req admission.Request) admission.Response {
	var pod corev1.Pod
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("reading the pod: %w", err))
	}
	before, err := json.Marshal(&pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	// What a copied manifest or an earlier call of this admission says is not so any more.
	delete(pod.Annotations, pps.AnnotationInjected)
	delete(pod.Annotations, meta.AnnotationTopologyReason)
	pod.Namespace = req.Namespace // it may be left to the request
	if err := b.bind(ctx, &pod); err != nil {
		b.log.Error(err, "a pod is not bound", "pod", req.Namespace+"/"+pod.Name)
		annotate(&pod, meta.AnnotationTopologyReason, "not looked up: "+err.Error())
	}
	if !namespaced(before) {
		pod.Namespace = ""
	}
	after, err := json.Marshal(&pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(before, after)
}

// bind looks up what is known of a pod, and injects it.
func (b *binder) bind(ctx context.Context, pod *corev1.Pod) error {
	target, owner := ownerTarget(pod)
	if owner == nil || pod.Name == "" || pod.Spec.NodeName != "" {
		return nil
	}
	if !b.view.Known() {
		return errUnknown
	}
	objects := b.view.Objects(target)
	if len(objects) == 0 || objects[0].DeletionTimestamp != nil {
		return nil
	}
	o := objects[0]
	last := b.view.sights.Last(target, owner.UID, pod.Name)
	if uid := o.Status.TargetUID; uid != "" && uid != string(owner.UID) {
		o = o.DeepCopy() // what is recorded is of an earlier workload of that name (FIELD, P2)
		o.Status.PodStates = nil
	}
	names := []string{o.Status.PodStates[pod.Name].NodeName}
	if last != nil {
		names = append(names, last.Node)
	}
	nodes, err := b.view.Nodes(ctx, names...)
	if err != nil {
		return err
	}
	m, known := Recall(o, pod.Name, last, nodes)
	if !known {
		return nil
	}
	injected, reasons := Inject(pod, o, m, b.release)
	b.log.V(1).Info("looked up", "pod", pod.Namespace+"/"+pod.Name, "object", o.Name, "node", m.NodeName, "injected", injected, "reasons", reasons)
	return nil
}

func namespaced(pod []byte) bool {
	var m struct{ Metadata struct{ Namespace string } }
	return json.Unmarshal(pod, &m) == nil && m.Metadata.Namespace != ""
}

// normalizer is the mutating webhook of PersistentPodStates.
type normalizer struct{}

func (normalizer) Handle(_ context.Context, req admission.Request) admission.Response {
	o, old, err := read(req)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	before, err := json.Marshal(o)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	var oldSpec *pps.PersistentPodStateSpec
	if old != nil {
		oldSpec = &old.Spec
	}
	if err := o.Spec.Normalize(oldSpec); err != nil {
		return admission.Denied(err.Error())
	}
	after, err := json.Marshal(o)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(before, after)
}

// validator is the validating webhook of PersistentPodStates.
type validator struct {
	view  *View
	kinds Kinds
}

func (v *validator) Handle(_ context.Context, req admission.Request) admission.Response {
	o, old, err := read(req)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if o.DeletionTimestamp != nil || old != nil && same(old.Status, o.Status) && equal(old, o) {
		return admission.Allowed("") // nothing that is checked here has changed: it may be older than the check
	}
	var others []string
	for _, other := range v.view.Objects(targetOf(o)) {
		if other.Name != o.Name && other.DeletionTimestamp == nil {
			others = append(others, other.Name)
		}
	}
	if old != nil {
		others = nil // its target cannot change; of two that are there already, the older one counts
	}
	if err := validate(o, v.kinds, others); err != nil {
		return admission.Denied(err.Error())
	}
	return admission.Allowed("")
}

// read reads what a request is about; old is nil at a creation.
func read(req admission.Request) (o, old *pps.PersistentPodState, err error) {
	o = &pps.PersistentPodState{}
	if err := json.Unmarshal(req.Object.Raw, o); err != nil {
		return nil, nil, fmt.Errorf("reading the PersistentPodState: %w", err)
	}
	o.Namespace = req.Namespace
	if req.Operation == admissionv1.Update {
		old = &pps.PersistentPodState{}
		if err := json.Unmarshal(req.OldObject.Raw, old); err != nil {
			return nil, nil, fmt.Errorf("reading the old PersistentPodState: %w", err)
		}
		old.Namespace = req.Namespace
	}
	return o, old, nil
}
