// Package admit answers for pods at their admission. The answer is always yes.
package admit

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission/metrics"
)

// Pods is a mutating webhook of pods. What change writes of a pod's labels, annotations, scheduling gates, node selector and
// affinity becomes the patch; the pod's namespace is the request's, for in the pod it may be missing yet.
//
// If change fails or panics, the pod cannot be read, or would have more annotations than the API server takes, it is admitted
// as it is. An error would be an answer to the API
// server, and the answer would be no: failurePolicy is about calls that fail.
func Pods(log logr.Logger, change func(ctx context.Context, req admission.Request, pod *corev1.Pod) error) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) (response admission.Response) {
		fail := func(err error, more ...any) {
			log.Error(err, "a pod is admitted as it is", append(more, "namespace", req.Namespace, "pod", req.Name)...)
			response = admission.Allowed("")
		}
		defer func() {
			if r := recover(); r != nil {
				metrics.WebhookPanics.WithLabelValues().Inc()
				fail(fmt.Errorf("panic: %v", r), "stack", string(debug.Stack()))
			}
		}()
		patched, err := patch(ctx, req, change)
		if err != nil {
			fail(err)
			return response
		}
		return patched
	})
}

func patch(ctx context.Context, req admission.Request, change func(context.Context, admission.Request, *corev1.Pod) error) (admission.Response, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return admission.Response{}, fmt.Errorf("reading the pod: %w", err)
	}
	before, err := outline(&pod)
	if err != nil {
		return admission.Response{}, err
	}
	if err := change(ctx, req, &pod); err != nil {
		return admission.Response{}, err
	}
	if size := annotationBytes(&pod); size > apivalidation.TotalAnnotationSizeLimitB {
		return admission.Response{}, fmt.Errorf("with what would be added, its annotations have %d bytes, and %d are allowed",
			size, apivalidation.TotalAnnotationSizeLimitB)
	}
	after, err := outline(&pod)
	if err != nil {
		return admission.Response{}, err
	}
	response := admission.PatchResponseFromRaw(before, after)
	if !response.Allowed {
		return admission.Response{}, fmt.Errorf("making the patch: %s", response.Result.Message)
	}
	return response, nil
}

// annotationBytes is the size of a pod's annotations as the API server counts it.
func annotationBytes(p *corev1.Pod) (size int) {
	for key, value := range p.Annotations {
		size += len(key) + len(value)
	}
	return size
}

// outline is as much of a pod as may change, as JSON. A patch is made of two texts by the same writer, so that it leaves
// alone what this program has no name for; and of no more than need be, for the rest is most of a pod.
func outline(p *corev1.Pod) ([]byte, error) {
	type metadata struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	type spec struct {
		SchedulingGates []corev1.PodSchedulingGate `json:"schedulingGates,omitempty"`
		NodeSelector    map[string]string          `json:"nodeSelector,omitempty"`
		Affinity        *corev1.Affinity           `json:"affinity,omitempty"`
	}
	return json.Marshal(struct {
		Metadata metadata `json:"metadata"`
		Spec     spec     `json:"spec"`
	}{metadata{p.Labels, p.Annotations}, spec{p.Spec.SchedulingGates, p.Spec.NodeSelector, p.Spec.Affinity}})
}
