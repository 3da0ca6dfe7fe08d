package nodepools

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
)

// unconfirmedDelay is how long a node must be without a working agent before the manager says so.
// Agents that are replaced by another version are ready again before.
const unconfirmedDelay = 30 * time.Second

// An agentPod is what the manager needs of the pod of an agent.
type agentPod struct {
	node   string
	reason string    // why the agent confirms nothing; "" if it is ready
	since  time.Time // when the pod was last ready, if it was
}

// viewAgent returns the agentPod of a pod.
func viewAgent(p *corev1.Pod) *agentPod {
	v := &agentPod{node: control.Intern(p.Spec.NodeName), reason: ipam.AgentNotReady}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			v.reason = ""
		} else if c.Type == corev1.PodReady {
			v.since = c.LastTransitionTime.Time
		}
	}
	switch {
	case p.DeletionTimestamp != nil, p.Status.Phase == corev1.PodFailed, p.Status.Phase == corev1.PodSucceeded:
		v.reason = ipam.AgentMissing // its DaemonSet creates another one
	case v.reason != "" && slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses,
		p.Status.ContainerStatuses), lacksImage):
		v.reason = ipam.AgentImageMissing
	}
	return v
}

// lacksImage reports whether a container waits for its image.
func lacksImage(c corev1.ContainerStatus) bool {
	return c.State.Waiting != nil && slices.Contains([]string{"ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff",
		"InvalidImageName", "ImageInspectError"}, c.State.Waiting.Reason)
}

// unconfirmed returns why nobody confirms what a node has published, and since when, if that is
// known. The reason is "" if an agent is ready there, or if no agent is wanted.
func unconfirmed(n *corev1.Node, agents []*agentPod) (reason string, since time.Time) {
	if n.Labels[corev1.LabelOSStable] != string(corev1.Linux) {
		return "", since
	}
	if c := control.Ready(n); c.Type != "" && c.Status != corev1.ConditionTrue {
		return ipam.NodeNotReady, c.LastTransitionTime.Time
	}
	for _, reason = range []string{"", ipam.AgentImageMissing, ipam.AgentNotReady} {
		for _, a := range agents {
			if a.reason == reason {
				return reason, a.since
			}
		}
	}
	return ipam.AgentMissing, since
}

// An agentReconciler sets the condition RetentionActive in the NodeAddressPool of each node to
// Unknown whose agent does not work: what the agent has published may not be true any more. It
// concludes that from the pods of the agents and from the nodes, and writes nothing else. The next
// write of the agent restores the condition. It runs in the leader.
type agentReconciler struct {
	nodes  *control.Nodes
	pools  *kube.Informer[*nodePool]
	agents *kube.Informer[*agentPod]
	client client.Client
	now    func() time.Time
	metric *prometheus.GaugeVec
	// without are the nodes without a working agent, by name.
	without map[string]*absence
}

// An absence is a period in which no agent of a node works, and the last reason for that.
type absence struct {
	reason string
	began  time.Time // when it was first seen, or another reason after it was shown
	// isShown reports whether the object has shown it. If it no longer does, an agent has written
	// that is not ready, or whose pod or node only seems not to work.
	isShown bool
}

const byAgentNode = "node"

func newAgentReconciler(nodes *control.Nodes, pools *kube.Informer[*nodePool], c client.Client) *agentReconciler {
	return &agentReconciler{nodes: nodes, pools: pools, client: c, now: time.Now, without: map[string]*absence{},
		agents: kube.NewInformer(viewAgent, kube.Indexes[*agentPod]{
			byAgentNode: func(a *agentPod) []string { return []string{a.node} }}),
		metric: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "leasehold_node_without_agent",
			Help: "1 for each node of Linux on which no agent works, by node and reason.",
		}, []string{"node", "reason"})}
}

// start enqueues from now on the nodes whose agent or NodeAddressPool changes, or which change
// themselves: to find that nothing follows costs a few lookups.
func (r *agentReconciler) start(ctx context.Context, queue control.Queue) {
	if !cache.WaitForCacheSync(ctx.Done(), r.nodes.HasSynced, r.agents.HasSynced, r.pools.HasSynced) {
		return
	}
	add := func(node string) { queue.Add(control.RequestFor(node)) }
	r.nodes.Handle(kube.Each(func(n *corev1.Node) { add(n.Name) }))
	r.agents.Handle(kube.Each(func(a *agentPod) { add(a.node) }))
	r.pools.Handle(kube.Each(func(p *nodePool) { add(p.node) }))
}

// Reconcile shows in the NodeAddressPool and in the metric that a node has no agent that works.
func (r *agentReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	reason, since := "", time.Time{}
	if node, found := r.nodes.Get(req.Name); found { // the NodeAddressPool is deleted with its node
		reason, since = unconfirmed(node, r.agents.ByIndex(byAgentNode, req.Name))
	}
	now, a := r.now(), r.without[req.Name]
	if reason == "" || a == nil || a.reason != reason {
		r.metric.DeletePartialMatch(prometheus.Labels{"node": req.Name})
		delete(r.without, req.Name)
		if reason == "" {
			return reconcile.Result{}, nil
		}
		next := &absence{reason: reason, began: now}
		if a != nil && !a.isShown {
			next.began = a.began
		}
		r.without[req.Name], a = next, next
	}
	if wait := a.began.Add(unconfirmedDelay).Sub(now); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	r.metric.WithLabelValues(req.Name, reason).Set(1)
	pool, found := r.pools.Get(req.Name)
	if !found || pool.status == "" || a.isShown {
		return reconcile.Result{}, nil
	}
	if pool.status != metav1.ConditionUnknown || pool.reason != reason {
		if since.IsZero() || since.After(a.began) { // by another clock
			since = a.began
		}
		switch err := r.show(ctx, pool, reason, since); {
		case apierrors.IsConflict(err): // the informer is late, and may show another change than one of the condition
			return reconcile.Result{RequeueAfter: nameDelay}, nil
		case client.IgnoreNotFound(err) != nil:
			return reconcile.Result{}, fmt.Errorf("writing the NodeAddressPool of %s: %w", req.Name, err)
		}
	} else {
		a.isShown = true
	}
	return reconcile.Result{}, nil
}

// show sets the condition to Unknown, and when that began as the time of its transition. It returns
// a conflict if the object has changed.
func (r *agentReconciler) show(ctx context.Context, p *nodePool, reason string, since time.Time) error {
	message := fmt.Sprintf("%s since %s: what is shown here, and the node's reservations, may not be true any more",
		agentTexts[reason], since.UTC().Format(time.RFC3339))
	patch, _ := json.Marshal([]map[string]any{ // texts and numbers can be encoded
		{"op": "replace", "path": "/metadata/resourceVersion", "value": p.version},
		{"op": "replace", "path": fmt.Sprintf("/status/conditions/%d", p.condition), "value": metav1.Condition{
			Type: ipam.ConditionRetentionActive, Status: metav1.ConditionUnknown, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(since.UTC().Truncate(time.Second))}},
	})
	object := &ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: p.node}}
	return r.client.Status().Patch(ctx, object, client.RawPatch(types.JSONPatchType, patch))
}

var agentTexts = map[string]string{
	ipam.AgentMissing:      "the node has no pod of the agent",
	ipam.AgentImageMissing: "the node does not have the image of the agent",
	ipam.AgentNotReady:     "the agent is not ready",
	ipam.NodeNotReady:      "the kubelet of the node is not ready",
}
