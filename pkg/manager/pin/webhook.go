package pin

import (
	"context"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/manager/podwebhook"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Path is where the webhook is served.
const Path = "/pin"

// A webhook looks a new pod's address up, has Decide decide, and writes the verdict on the pod.
type webhook struct {
	Options
	cluster *cluster
	gate    func(ctx context.Context, namespace, name string) bool // the nominator's admit
	meters  *meters
	log     logr.Logger
}

// handler is what is served: whatever goes wrong, it admits the pod.
func (w *webhook) handler() admission.Handler {
	pods := podwebhook.Pods(w.log, w.pin)
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
		start := time.Now()
		defer func() { w.meters.duration.Observe(time.Since(start).Seconds()) }()
		return pods.Handle(ctx, req)
	})
}

func (w *webhook) pin(ctx context.Context, req admission.Request, pod *corev1.Pod) error {
	if !retained(pod) {
		return nil
	}
	strip(pod)
	key := req.Namespace + "/" + pod.Name
	facts := w.facts(ctx, key, req.Namespace, pod)
	facts.Large = large(pod, len(req.Object.Raw))
	verdict := Decide(facts)
	dryRun := req.DryRun != nil && *req.DryRun
	if verdict.Mode == policy.PinNominate && !dryRun && !w.gate(ctx, req.Namespace, pod.Name) {
		facts.Crowded = true
		verdict = Decide(facts)
	}
	apply(pod, verdict)
	w.meters.decisions.WithLabelValues(string(verdict.Mode), string(verdict.Reason)).Inc()
	w.log.V(1).Info("decided", "pod", key, "mode", verdict.Mode, "node", verdict.Node, "reason", verdict.Reason, "text", verdict.Text)
	return nil
}

// What a pod with our gate may have at most. Removing the gate makes the pod's record larger, of which etcd takes 1.5 MiB, and
// the policy that confines the manager looks at all of it, which may cost so much and no more.
const (
	maxGatedBytes       = 512 << 10 // as JSON
	maxGatedAnnotations = 1000
	maxGatedLabels      = 1000
	maxGatedGates       = 100 // of others
)

// large reports whether a pod, which had so many bytes when it came, exceeds one of these.
func large(pod *corev1.Pod, bytes int) bool {
	return bytes > maxGatedBytes || len(pod.Annotations) > maxGatedAnnotations || len(pod.Labels) > maxGatedLabels ||
		len(pod.Spec.SchedulingGates) > maxGatedGates
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
	return f
}
