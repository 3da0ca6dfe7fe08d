package pin

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// webhookPath is the URL path of the webhook.
const webhookPath = "/pin"

const (
	// lookPause and lookTries limit how long the webhook waits for the deletion of a pod that a new
	// one with its reservation name replaces.
	lookPause = 100 * time.Millisecond
	lookTries = 10
)

// A webhook looks up the node that has a new pod's addresses, calls decide, and applies the
// decision to the pod.
type webhook struct {
	Options
	cluster    *cluster
	collectors *collectors
	log        logr.Logger
}

// handler returns the handler of admission requests. It admits every pod, also after an error.
func (w *webhook) handler() admission.Handler { return control.PodWebhook(w.log, w.pin) }

// pin modifies a pod that is being created. Without retention, or if another webhook has set
// spec.nodeName since an earlier call, only what the earlier call has written is removed.
func (w *webhook) pin(ctx context.Context, req admission.Request, pod *corev1.Pod) error {
	before := strip(pod)
	if !retained(pod) {
		return nil
	}
	as, isTrial := reservationName(pod), req.DryRun != nil && *req.DryRun
	if as != "" && before != "" && !isTrial {
		w.cluster.recent.Arrived(control.NameKey(req.Namespace, as), before)
	}
	d := w.decide(ctx, req.Namespace, pod, as, isTrial)
	apply(pod, d)
	w.collectors.decisions.WithLabelValues(string(d.Mode), string(d.Reason)).Inc()
	w.log.V(1).Info("decided", "namespace", req.Namespace, "pod", pod.Name, "mode", d.Mode, "node", d.Node,
		"reason", d.Reason, "text", d.Text)
	return nil
}

// decide decides whether and how a pod is pinned. The watch may show the deletion of a pod a moment
// after the ReplicaSet has created the next one. So for a pod that may be such a replacement decide
// waits once, because two replicas would send pods to the only address that they see, and a few
// times more while there is no address.
func (w *webhook) decide(ctx context.Context, namespace string, pod *corev1.Pod, as string, isTrial bool) (d decision) {
	tries := 1
	if as != "" && w.cluster.mayReplace(namespace, as, pod) {
		tries = lookTries
	}
	for range tries {
		waits := tries == 1 || daemon.Wait(ctx, nil, lookPause)
		if d = w.decideOnce(namespace, pod, as, isTrial); d.Reason != noReservation || !waits {
			break
		}
	}
	return d
}

// decideOnce decides with what this replica knows now. If it pins a pod with a reservation name, it
// records that, so that another pod with the name is not sent to the same address. If a pod that is
// required to run on a node would find no address there any more, decideOnce decides again.
func (w *webhook) decideOnce(namespace string, pod *corev1.Pod, as string, isTrial bool) decision {
	for {
		d := w.best(namespace, pod, as)
		if as == "" || isTrial || !d.Pinned() ||
			w.cluster.send(control.NameKey(namespace, as), d.Node, d.Mode == policy.PinRequire) {
			return d
		}
	}
}

// best collects the facts of a pod and decides. Of several nodes that have an address for the pod's
// reservation name, it takes the first one where the pod is pinned in the mode that applies to it,
// else the first one where it is pinned. pod must have been stripped.
func (w *webhook) best(namespace string, pod *corev1.Pod, as string) (best decision) {
	f := podFacts{Pod: pod, Scheduled: slices.Contains(w.Schedulers, pod.Spec.SchedulerName),
		Recreated: recreated(pod, w.Kinds), Known: w.cluster.Synced()}
	labels, _ := w.cluster.namespaces.Get(namespace)
	f.Wish = wishOf(pod.Annotations, labels, w.Mode)
	keepPatience(pod, labels)
	best = decide(f)
	if !f.Known {
		return best
	}
	for i, target := range w.cluster.targetsOf(namespace, pod.Name, as) {
		f.Target = target
		f.Node, _ = w.cluster.nodes.Get(target.Node)
		switch d := decide(f); {
		case d.Mode == f.Wish.Mode:
			return d
		case i == 0, d.Pinned() && !best.Pinned():
			best = d
		}
	}
	return best
}

// keepPatience copies the patience of the namespace to a pod that has none, because it must not
// change while the pod waits.
func keepPatience(pod *corev1.Pod, namespace map[string]string) {
	const key = kube.AnnotationPinPatience
	if value, found := namespace[key]; found && !metav1.HasAnnotation(pod.ObjectMeta, key) {
		pod.Annotations = maps.Clone(pod.Annotations)
		pod.Annotations[key] = value
	}
}
