package pin

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/manager/podwebhook"
	"github.com/leasehold-cni/leasehold/pkg/notify"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// webhookPath is the URL path of the webhook.
const webhookPath = "/pin"

// A webhook looks up the node that has a new pod's addresses, calls decide, and applies the
// decision to the pod.
type webhook struct {
	Options
	cluster    *cluster
	gate       func(ctx context.Context, namespace, name string) bool // nominator.admit: whether a pod may get a gate
	collectors *collectors
	log        logr.Logger
	named      sync.Mutex // held while a pod with a reservation name is decided about
}

// handler returns the handler of admission requests. It admits every pod, also after an error.
func (w *webhook) handler() admission.Handler {
	pods := podwebhook.Pods(w.log, w.pin)
	return admission.HandlerFunc(func(ctx context.Context, req admission.Request) admission.Response {
		start := time.Now()
		defer func() { w.collectors.duration.Observe(time.Since(start).Seconds()) }()
		return pods.Handle(ctx, req)
	})
}

// pin modifies a pod that is being created. Without retention, the pod remains unchanged.
func (w *webhook) pin(ctx context.Context, req admission.Request, pod *corev1.Pod) error {
	if !retained(pod) {
		return nil
	}
	node, reason := pod.Annotations[wellknown.AnnotationPinnedNode], pod.Annotations[wellknown.AnnotationPinReason]
	strip(pod)
	name := w.cluster.nameOf(req.Namespace, pod)
	key := req.Namespace + "/" + name
	dryRun := req.DryRun != nil && *req.DryRun
	facts, decision := w.decide(ctx, key, req, pod, dryRun)
	if decision.Mode == policy.PinNominate && !dryRun && !w.gate(ctx, req.Namespace, name) {
		facts.Crowded = true
		decision = decide(facts)
	}
	apply(pod, decision)
	if decision.Pinned() {
		pod.Name = name // so that the manager knows the pod when it is created
	}
	if decision.Reason == nodeExcluded && modeIn(reason) == policy.PinRequire && requires(pod, node) {
		// An earlier call of this admission has restricted the pod to the node, and another
		// webhook has excluded the node since. The evictor must know that the pod waits for it.
		pod.Annotations[wellknown.AnnotationPinnedNode], pod.Annotations[wellknown.AnnotationPinReason] = node, reason
	}
	w.collectors.decisions.WithLabelValues(string(decision.Mode), string(decision.Reason)).Inc()
	w.log.V(1).Info("decided", "pod", key, "mode", decision.Mode, "node", decision.Node, "reason", decision.Reason,
		"text", decision.Text)
	return nil
}

// decide collects the facts of a pod and decides. For a pod that may get the address of another pod
// whose deletion no watch shows yet, it waits, and tries several times.
func (w *webhook) decide(ctx context.Context, key string, req admission.Request, pod *corev1.Pod, dryRun bool,
) (f podFacts, d decision) {
	as := reservationName(pod)
	if as == "" || !w.cluster.mayReplace(req.Namespace, as, pod) {
		return w.decideOnce(ctx, key, as, req, pod, dryRun)
	}
	for range lookTries {
		waits := notify.Wait(ctx, nil, lookPause)
		if f, d = w.decideOnce(ctx, key, as, req, pod, dryRun); d.Reason != noReservation || !waits {
			break
		}
	}
	return f, d
}

// decideOnce collects the facts of a pod and decides. If it pins a pod with a reservation name
// (as), it records where, so that another pod with the name that is admitted now is not pinned to
// the same addresses.
func (w *webhook) decideOnce(ctx context.Context, key, as string, req admission.Request, pod *corev1.Pod, dryRun bool,
) (podFacts, decision) {
	if as != "" {
		w.named.Lock()
		defer w.named.Unlock()
	}
	facts := w.facts(ctx, key, req.Namespace, pod)
	facts.Large = large(pod, len(req.Object.Raw))
	d := decide(facts)
	if as != "" && d.Pinned() && !dryRun {
		w.cluster.admit(key, nameKey(req.Namespace, as), d.Node, d.Addresses)
	}
	return facts, d
}

// The limits of a pod that gets a gate. Lifting the gate adds to managedFields, and etcd accepts at
// most 1.5 MiB. The admission policy for the manager compares the whole pod, and the cost of a
// policy is limited.
const (
	maxGatedBytes       = 512 << 10 // as JSON
	maxGatedAnnotations = 1000
	maxGatedLabels      = 1000
	maxGatedGates       = 100 // other gates
)

// large reports whether a pod exceeds one of the limits, so that it gets no gate. bytes is the size
// of the pod in the request.
func large(pod *corev1.Pod, bytes int) bool {
	return bytes > maxGatedBytes || len(pod.Annotations) > maxGatedAnnotations || len(pod.Labels) > maxGatedLabels ||
		len(pod.Spec.SchedulingGates) > maxGatedGates
}

// facts collects the input of decide. Of several nodes that have an address for the pod's
// reservation name, it takes the first to which the pod may be pinned. If a lookup fails, Known is
// false in the result. pod must have been stripped.
func (w *webhook) facts(ctx context.Context, key, namespace string, pod *corev1.Pod) podFacts {
	f := podFacts{Pod: pod, Mode: w.Mode, Fallback: w.Fallback,
		Honoured: slices.Contains(w.Schedulers, pod.Spec.SchedulerName)}
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
	nodes, last := w.cluster.targetsOf(key, namespace, reservationName(pod))
	first := f
	first.Known = true
	for i := range nodes {
		g := f
		g.Target, g.Last, g.Found = nodes[i], last[i], true
		if g.Node, err = w.cluster.node(ctx, g.Target.Node); err != nil {
			w.log.Error(err, "looking up a node", "pod", key, "node", g.Target.Node)
			return g
		}
		g.Known = true
		if why, _ := blocker(g); why == "" {
			return g
		}
		if i == 0 {
			first = g
		}
	}
	return first
}
