package topology

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/kube/admit"
	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/meta"
)

// binder is the webhook of pods. What cannot be looked up keeps no pod from starting: the pod says so (FIELD, P7 and P16).
type binder struct {
	view    *View
	release bool
	grace   time.Duration // how long a node that has left counts as there
	log     logr.Logger
}

func (b *binder) handler() admission.Handler { return admit.Pods(b.log, b.change) }

func (b *binder) change(ctx context.Context, req admission.Request, pod *corev1.Pod) error {
	Undo(pod)
	if err := b.bind(ctx, req.Namespace, pod); err != nil {
		b.log.Error(err, "a pod is not bound", "pod", req.Namespace+"/"+pod.Name)
		annotate(pod, meta.AnnotationTopologyReason, "not looked up: "+err.Error())
	}
	return nil
}

// bind looks up what is known of a pod, and injects it.
func (b *binder) bind(ctx context.Context, namespace string, pod *corev1.Pod) error {
	target, owner := ownerTarget(pod)
	target.Namespace = namespace // in the pod it may be missing yet
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
	m.NodeGone = m.NodeGone && time.Since(b.view.looksSince()) >= b.grace
	var choice []*corev1.Node
	if o.Spec.RequiredPersistentTopology != nil {
		if choice, err = b.view.Choice(ctx, pod, m.NodeName); err != nil {
			return err
		}
	}
	injected, reasons := Inject(pod, o, m, choice, b.release)
	b.log.V(1).Info("looked up", "pod", namespace+"/"+pod.Name, "object", o.Name, "node", m.NodeName, "injected", injected, "reasons", reasons)
	return nil
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
	if old != nil && equality.Semantic.DeepEqual(old.Spec, o.Spec) {
		return admission.Allowed("") // it may be older than the check, and must still be allowed to go
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
