package pin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Path is where the webhook is served.
const Path = "/pin"

// A webhook looks a new pod's address up, has Decide decide, and answers with the patch. Whatever goes wrong, it admits
// the pod.
type webhook struct {
	Options
	cluster *cluster
	backlog *backlog
	meters  *meters
	log     logr.Logger
}

func (w *webhook) Handle(ctx context.Context, req admission.Request) admission.Response {
	start := time.Now()
	defer func() { w.meters.duration.Observe(time.Since(start).Seconds()) }()

	response, err := w.handle(ctx, req)
	if err != nil {
		// An error would be an answer to the API server, and the answer would be no: failurePolicy is about calls that fail.
		w.log.Error(err, "a pod is admitted as it is", "namespace", req.Namespace, "pod", req.Name)
		return admission.Allowed("")
	}
	return response
}

func (w *webhook) handle(ctx context.Context, req admission.Request) (admission.Response, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(req.Object.Raw, &pod); err != nil {
		return admission.Response{}, fmt.Errorf("reading the pod: %w", err)
	}
	if !retained(&pod) {
		return admission.Allowed(""), nil
	}
	// The patch is made of two texts by the same writer, so that it leaves alone what this program has no name for.
	before, err := json.Marshal(&pod)
	if err != nil {
		return admission.Response{}, err
	}
	strip(&pod)
	key := req.Namespace + "/" + pod.Name
	verdict := Decide(w.facts(ctx, key, req.Namespace, &pod))
	apply(&pod, verdict)
	after, err := json.Marshal(&pod)
	if err != nil {
		return admission.Response{}, err
	}
	response := admission.PatchResponseFromRaw(before, after)
	if response.Result != nil && !response.Allowed {
		return admission.Response{}, fmt.Errorf("making the patch: %s", response.Result.Message)
	}
	if verdict.Mode == policy.PinNominate && !(req.DryRun != nil && *req.DryRun) {
		w.backlog.Made(key, w.cluster.now())
	}
	w.meters.decisions.WithLabelValues(string(verdict.Mode), string(verdict.Reason)).Inc()
	w.log.V(1).Info("decided", "pod", key, "mode", verdict.Mode, "node", verdict.Node, "reason", verdict.Reason, "text", verdict.Text)
	return response, nil
}

// facts gathers what a decision is made of.
func (w *webhook) facts(ctx context.Context, key, namespace string, pod *corev1.Pod) Facts {
	f := Facts{Pod: pod, Mode: w.Mode, Fallback: w.Fallback, Honoured: slices.Contains(w.Schedulers, pod.Spec.SchedulerName)}
	if !w.cluster.Synced() {
		f.Mode, f.ModeNote = modeOf(pod.Annotations, "", w.Mode)
		return f
	}
	said, err := w.cluster.namespaceMode(ctx, namespace)
	f.Mode, f.ModeNote = modeOf(pod.Annotations, said, w.Mode)
	if err != nil {
		w.log.Error(err, "looking up a namespace", "pod", key)
		return f
	}
	f.Place, f.Last, f.Found = w.cluster.place(key)
	if f.Found {
		if f.Node, err = w.cluster.node(ctx, f.Place.Node); err != nil {
			w.log.Error(err, "looking up a node", "pod", key, "node", f.Place.Node)
			return f
		}
	}
	f.Known = true
	f.Crowded = !w.backlog.Room(len(w.cluster.gatedPods()), w.cluster.now())
	return f
}
