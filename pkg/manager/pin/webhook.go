package pin

import (
	"context"
	"iter"
	"maps"
	"math/rand/v2"
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
	// lookPause and lookFor are how often and how long the webhook looks for the deletion of a pod
	// that a new one with its reservation name replaces. The API server waits for two seconds.
	lookPause = 100 * time.Millisecond
	lookFor   = time.Second
	// lookSpread is how much longer than lookPause a replica that is not the leader waits, at most,
	// so that several do not decide at the same time.
	lookSpread = 300 * time.Millisecond
)

// A webhook looks up the node that has a new pod's addresses, calls decide, and applies the
// decision to the pod.
type webhook struct {
	Options
	cluster     *cluster
	unconfirmed func(node string) string // of Setup
	log         logr.Logger
}

// pin modifies a pod that is being created. Without retention, or if another webhook has set
// spec.nodeName since an earlier call, only what the earlier call has written is removed.
func (w *webhook) pin(ctx context.Context, req admission.Request, pod *corev1.Pod) error {
	before := strip(pod)
	if !retained(pod) {
		return nil
	}
	var d decision
	if as := reservationName(pod); as != "" {
		d = w.decideForName(ctx, req, pod, as, before)
	} else {
		target := w.cluster.target(req.Namespace + "/" + pod.Name)
		d = w.decide(req.Namespace, pod, slices.Values([]pinTarget{target}))
	}
	apply(pod, d)
	decisions.WithLabelValues(string(d.Mode), string(d.Reason)).Inc()
	w.log.V(1).Info("decided", "namespace", req.Namespace, "pod", pod.Name, "mode", d.Mode, "node", d.Node,
		"reason", d.Reason, "text", d.Text)
	return nil
}

// decideForName decides about a pod with a reservation name, and remembers where it sends the pod.
// before is the node of an earlier call in the same admission, "" if there was none.
//
// The watch may show the deletion of a pod a moment after the ReplicaSet has created the next one.
// So for a pod that may be such a replacement it waits once, because two replicas would send pods
// to the only address that they see, and a few times more while there is no address, or only some
// to which as many pods were sent. A replica that is not the leader waits if it has a choice, until
// it sees what the leader, and mostly also what others, have decided about pods that were created
// at the same time.
func (w *webhook) decideForName(ctx context.Context, req admission.Request, pod *corev1.Pod, as, before string,
) (d decision) {
	c, name, isTrial := w.cluster, control.NameKey(req.Namespace, as), req.DryRun != nil && *req.DryRun
	sent := &c.sent[sentIndex(req.Namespace, pod)]
	if before != "" && !isTrial {
		sent.forget(before)
	}
	send := func() decision {
		sent.Lock()
		defer sent.Unlock()
		d := w.decide(req.Namespace, pod, c.targets(name, sent.pods))
		if d.Pinned() && !isTrial {
			sent.add(d.Node, c.now())
		}
		return d
	}
	mayWait, turns := c.mayReplace(name, workloadOf(pod)), 1
	for end := time.Now().Add(lookFor); ; {
		waits := !mayWait || daemon.Wait(ctx, nil, lookPause)
		if waits && turns > 0 && !c.isLeader() && c.hasChoice(name) {
			turns--
			waits = daemon.Wait(ctx, nil, lookPause+rand.N(lookSpread))
		}
		d = send()
		if d.Reason != noReservation && !d.Taken || !mayWait || !waits || !time.Now().Before(end) {
			return d
		}
		if d.Pinned() && !isTrial {
			sent.forget(d.Node)
		}
	}
}

// maxCompared is how many labels, requirements and tolerations of a pod are compared with nodes, at
// most, if that is more than once. A pod may have 100,000, and there may be 5,000 nodes with
// addresses of its name.
const maxCompared = 200_000

// decide collects the facts of a pod and decides. Of several nodes that have an address for the
// pod, it takes the first one where the pod is pinned in the mode that applies to it, else the
// first one where it is pinned. The more a pod asks of nodes, the fewer it looks at (maxCompared).
// pod must have been stripped.
func (w *webhook) decide(namespace string, pod *corev1.Pod, targets iter.Seq[pinTarget]) (best decision) {
	f := podFacts{Pod: pod, Scheduled: slices.Contains(w.Schedulers, pod.Spec.SchedulerName),
		Recreated: recreated(pod, w.Kinds), Known: w.cluster.Synced()}
	labels, _ := w.cluster.namespaces.Get(namespace)
	f.Wish = wishOf(pod.Annotations, labels, w.Mode)
	keepPatience(pod, labels)
	best = decide(f)
	if !f.Known {
		return best
	}
	compared, each := 0, 20+control.SizeOfSelectors(pod)+len(pod.Spec.Tolerations)
	for target := range targets {
		if compared += each; compared > maxCompared && compared > each {
			break
		}
		f.Target = target
		f.Node, _ = w.cluster.nodes.Get(target.Node)
		f.Unconfirmed = w.unconfirmed(target.Node)
		switch d := decide(f); {
		case d.Mode == f.Wish.Mode:
			return d
		case best.Node == "", d.Pinned() && !best.Pinned():
			best = d
		}
	}
	return best
}

// keepPatience copies the patience of the namespace to a pod that has none, because it must not
// change while the pod waits. An invalid one is not copied: a policy would reject the pod.
func keepPatience(pod *corev1.Pod, namespace map[string]string) {
	const key = kube.AnnotationPinPatience
	value := namespace[key]
	if _, err := policy.ParsePatience(value); err == nil && !metav1.HasAnnotation(pod.ObjectMeta, key) {
		pod.Annotations = maps.Clone(pod.Annotations)
		pod.Annotations[key] = value
	}
}
