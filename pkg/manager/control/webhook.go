package control

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission/metrics"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// PodWebhook returns a mutating webhook for pods that calls change to modify each pod. The patch
// contains only the modifications of the pod's labels, annotations, node selector and affinity.
// Other modifications are dropped. change must take the namespace from the request, because the
// namespace might not be set in the pod yet.
//
// The pod is admitted unchanged if change fails or panics, if the pod cannot be decoded, or if it
// would have more annotations than the API server accepts. In these cases the webhook does not
// answer with an error, because the API server would then reject the pod: the failure policy Ignore
// applies only to calls that fail, not to answers.
func PodWebhook(
	log logr.Logger, change func(ctx context.Context, req admission.Request, pod *corev1.Pod) error,
) admission.Handler {
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) (response admission.Response) {
		var err error
		defer func() {
			if r := recover(); r != nil {
				metrics.WebhookPanics.WithLabelValues().Inc()
				err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
			}
			if err != nil {
				log.Error(err, "patching the pod failed, admitting it unchanged", "namespace", req.Namespace,
					"pod", req.Name)
				response = admission.Allowed("")
			}
		}()
		response, err = patch(ctx, req, change)
		return response
	})
}

// maxNamespace is how many bytes the name of a namespace has, at most.
const maxNamespace = 63

// patch returns the response with the modifications of change, or an error if the pod has to be
// admitted unchanged.
func patch(
	ctx context.Context, req admission.Request, change func(context.Context, admission.Request, *corev1.Pod) error,
) (admission.Response, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return admission.Response{}, fmt.Errorf("decoding the pod: %w", err)
	}
	// The API server validates names after it has called webhooks, which remember pods by name.
	if len(req.Namespace) > maxNamespace || len(pod.Name) > kube.MaxName {
		return admission.Response{}, fmt.Errorf("a name of %d bytes in a namespace of %d bytes is not valid",
			len(pod.Name), len(req.Namespace))
	}
	before := mutablePart(&pod)
	if err := change(ctx, req, &pod); err != nil {
		return admission.Response{}, err
	}
	if err := apivalidation.ValidateAnnotationsSize(pod.Annotations); err != nil {
		return admission.Response{}, err
	}
	response := admission.PatchResponseFromRaw(before, mutablePart(&pod))
	if !response.Allowed {
		return admission.Response{}, fmt.Errorf("creating the patch: %s", response.Result.Message)
	}
	return response, nil
}

// mutablePart returns the fields of a pod that change may modify, as JSON. patch calls it before
// and after change, and the patch is the difference of the two documents. Both are encoded with the
// same Go types, so that fields that the Go types lack are not removed by the patch. The other
// fields of the pod are omitted to save time: they make up most of a pod.
func mutablePart(p *corev1.Pod) []byte {
	data, _ := json.Marshal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: p.Labels, Annotations: p.Annotations},
		Spec: corev1.PodSpec{NodeSelector: p.Spec.NodeSelector, Affinity: p.Spec.Affinity}})
	return data // it has maps, lists and strings, and always can be encoded
}
