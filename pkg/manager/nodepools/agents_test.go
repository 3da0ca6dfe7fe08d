package nodepools

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func nodeOfOS(os string, ready corev1.ConditionStatus) *corev1.Node {
	labels := map[string]string{corev1.LabelOSStable: os}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: labels},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready,
			LastTransitionTime: metav1.NewTime(noon)}}}}
}

func agentOf(ready corev1.ConditionStatus, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "leasehold-system", Name: "agent", UID: "1"},
		Spec: corev1.PodSpec{NodeName: "node1"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready,
		LastTransitionTime: metav1.NewTime(noon)}}
	for _, c := range change {
		c(p)
	}
	return p
}

func waitsFor(reason string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
}

func TestUnconfirmed(t *testing.T) {
	up, down, linux := corev1.ConditionTrue, corev1.ConditionUnknown, "linux"
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(noon)) }
	failed := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	for _, c := range []struct {
		name string
		node *corev1.Node
		pods []*corev1.Pod
		want string
	}{
		{"an agent that is ready", nodeOfOS(linux, up), []*corev1.Pod{agentOf(up)}, ""},
		{"no agent, ever", nodeOfOS(linux, up), nil, ipam.AgentMissing},
		{"another system", nodeOfOS("windows", up), nil, ""},
		{"the node is down", nodeOfOS(linux, down), []*corev1.Pod{agentOf(up)}, ipam.NodeNotReady},
		{"not ready", nodeOfOS(linux, up), []*corev1.Pod{agentOf(corev1.ConditionFalse)}, ipam.AgentNotReady},
		{"not started", nodeOfOS(linux, up), []*corev1.Pod{{}}, ipam.AgentNotReady},
		{"no image", nodeOfOS(linux, up), []*corev1.Pod{agentOf(corev1.ConditionFalse, waitsFor("ErrImageNeverPull"))},
			ipam.AgentImageMissing},
		{"it crashes", nodeOfOS(linux, up), []*corev1.Pod{agentOf(corev1.ConditionFalse, waitsFor("CrashLoopBackOff"))},
			ipam.AgentNotReady},
		{"it is replaced", nodeOfOS(linux, up), []*corev1.Pod{agentOf(up, leaving),
			agentOf(corev1.ConditionFalse, waitsFor("ErrImagePull"))}, ipam.AgentImageMissing},
		{"it was replaced", nodeOfOS(linux, up),
			[]*corev1.Pod{agentOf(corev1.ConditionFalse, failed), agentOf(up)}, ""},
		{"evicted", nodeOfOS(linux, up), []*corev1.Pod{agentOf(up, failed)}, ipam.AgentMissing},
	} {
		var agents []*agentPod
		for _, p := range c.pods {
			agents = append(agents, viewAgent(p))
		}
		got, _ := unconfirmed(c.node, agents)
		check.Equal(t, got, c.want, c.name)
	}
}

// agentRig is an agentReconciler of one node, whose NodeAddressPool says that retention is active.
type agentRig struct {
	*agentReconciler
	t    *testing.T
	api  *api
	time time.Time
}

func newAgentRig(t *testing.T) *agentRig {
	r := &agentRig{t: t, api: &api{}, time: noon}
	r.agentReconciler = newAgentReconciler(control.NewNodes(), kube.NewInformer(viewPool, nil), r.api)
	r.now = func() time.Time { return r.time }
	must.Succeed(t, r.nodes.Update(nodeOfOS("linux", corev1.ConditionTrue)))
	r.writes(metav1.ConditionTrue, "Named")
	return r
}

// writes has somebody write the condition.
func (r *agentRig) writes(status metav1.ConditionStatus, reason string) {
	r.t.Helper()
	must.Succeed(r.t, r.pools.Update(&ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "node1",
		ResourceVersion: "7" + reason}, Status: ipam.NodeAddressPoolStatus{Conditions: []metav1.Condition{
		{Type: "Other", Status: status}, {Type: ipam.ConditionRetentionActive, Status: status, Reason: reason}}}}))
}

// after makes passes as they are due, for some time, and returns the patches.
func (r *agentRig) after(d time.Duration) (patches []string) {
	r.t.Helper()
	r.api.patches = nil
	for end := r.time.Add(d); ; {
		result, err := r.Reconcile(r.t.Context(), control.RequestFor("node1"))
		if err != nil && r.api.err == nil {
			r.t.Fatal(err)
		}
		if result.RequeueAfter == 0 || r.time.Add(result.RequeueAfter).After(end) {
			r.time = end
			return r.api.patches
		}
		r.time = r.time.Add(result.RequeueAfter)
	}
}

// A node whose agent is gone is shown once, within a minute, and the metric has it. The agent that
// comes back is not contradicted, even if it never seems ready.
func TestNodeWithoutAgentIsShown(t *testing.T) {
	r := newAgentRig(t)
	check.Empty(t, r.after(unconfirmedDelay-time.Second), "a second early")
	got := r.after(time.Second)
	if len(got) != 1 || testutil.ToFloat64(r.metric.WithLabelValues("node1", ipam.AgentMissing)) != 1 {
		t.Fatalf("after %s: %q", unconfirmedDelay, got)
	}
	var patch []struct {
		Op, Path string
		Value    any
	}
	name, data, _ := strings.Cut(got[0], " ")
	must.Succeed(t, json.Unmarshal([]byte(data), &patch))
	if name != "node1" || len(patch) != 2 || patch[0].Path != "/metadata/resourceVersion" ||
		patch[0].Value != "7Named" || patch[1].Path != "/status/conditions/1" {
		t.Errorf("the patch is %s", got[0])
	}
	condition, began := patch[1].Value.(map[string]any), noon.UTC().Format(time.RFC3339)
	if condition["status"] != "Unknown" || condition["reason"] != ipam.AgentMissing ||
		condition["type"] != ipam.ConditionRetentionActive || condition["lastTransitionTime"] != began ||
		!strings.Contains(condition["message"].(string), "since "+began) {
		t.Errorf("the condition is %v", condition)
	}

	r.writes(metav1.ConditionUnknown, ipam.AgentMissing)
	check.Empty(t, r.after(time.Hour), "written again")
	must.Succeed(t, r.agents.Update(agentOf(corev1.ConditionFalse))) // there it is, and not ready
	if got := r.after(time.Minute); len(got) != 1 || !strings.Contains(got[0], ipam.AgentNotReady) {
		t.Errorf("not ready: %q", got)
	}
	r.writes(metav1.ConditionUnknown, ipam.AgentNotReady)
	r.after(0)
	r.writes(metav1.ConditionTrue, "Named")
	check.Empty(t, r.after(time.Hour), "the agent is contradicted")
	p := agentOf(corev1.ConditionTrue)
	p.ResourceVersion = "2"
	must.Succeed(t, r.agents.Update(p))
	r.after(time.Minute)
	check.Equal(t, testutil.CollectAndCount(r.metric), 0, "nodes in the metric, after the agent is ready")
}

// A node is enqueued for the reconcilers that a change concerns.
func TestFollowedChanges(t *testing.T) {
	now := time.Now()
	agents, spec := newAgentRig(t), poolsOf(t, setOf(t), &now)
	spec.pools = agents.pools
	must.Succeed(t, errors.Join(spec.set.Replace(nil, ""), spec.requests.Replace(nil, ""), spec.limits.Replace(nil, ""),
		agents.nodes.Replace(nil, ""), agents.agents.Replace(nil, ""), agents.pools.Replace(nil, "")))
	queues := map[string]control.Queue{"spec": spec.queue, "agents": poolsOf(t, setOf(t), &now).queue}
	spec.start(t.Context(), queues["spec"])
	agents.start(t.Context(), queues["agents"])
	p := &ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	pool := func(change func()) func() error {
		return func() error {
			change()
			p.ResourceVersion += "0"
			return agents.pools.Update(p.DeepCopy())
		}
	}
	for _, c := range []struct {
		story  string
		change func() error
		want   string // the reconcilers
	}{
		{"a node", func() error { return agents.nodes.Update(nodeOfOS("linux", corev1.ConditionTrue)) }, "agents"},
		{"its agent", func() error { return agents.agents.Update(agentOf(corev1.ConditionTrue)) }, "agents"},
		{"its NodeAddressPool", pool(func() {}), "agents spec"},
		{"its condition", pool(func() {
			p.Status.Conditions = []metav1.Condition{{Type: ipam.ConditionRetentionActive}}
		}), "agents"},
		{"its ranges", pool(func() {
			p.Status.Networks = []ipam.NetworkAddressPool{{Ranges: []ipam.AddressRange{{Start: "10.0.0.2",
				End: "10.0.0.9"}}}}
		}), "agents spec"},
		{"what names reservations", pool(func() { p.Spec.Reservations = []reference{{Name: "db-0"}} }), "agents spec"},
		{"what names requests", pool(func() { p.Spec.Requests = []ipam.RequestReference{{}} }), "agents spec"},
		{"what names ranges", pool(func() { p.Spec.Shared = []ipam.SharedRange{{NodeName: "node2"}} }), "agents spec"},
	} {
		must.Succeed(t, c.change())
		var got []string
		for _, name := range []string{"agents", "spec"} {
			for queue := queues[name]; queue.Len() > 0; {
				item, _ := queue.Get()
				if queue.Done(item); item == control.RequestFor("node1") {
					got = append(got, name)
				}
			}
		}
		check.Equal(t, strings.Join(got, " "), c.want, c.story, "enqueued for")
	}
}

// The clock of a node may be ahead of the manager's: no condition is of the future.
func TestNodeWithAnotherClock(t *testing.T) {
	r := newAgentRig(t)
	must.Succeed(t, r.agents.Update(agentOf(corev1.ConditionFalse, func(p *corev1.Pod) {
		p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(time.Hour))
	})))
	if got := r.after(unconfirmedDelay); len(got) != 1 || strings.Count(got[0], noon.Format(time.RFC3339)) != 2 {
		t.Errorf("the time and the message are not of %s: %q", noon, got)
	}
}

// An object of which the informer shows an earlier version is written again, although its condition
// has not changed.
func TestNodeWithoutAgentAndALateInformer(t *testing.T) {
	r := newAgentRig(t)
	r.after(unconfirmedDelay - time.Second)
	r.time = r.time.Add(time.Second)
	r.api.err = apierrors.NewConflict(ipam.NodeAddressPoolResource.GroupResource(), "node1", nil)
	result, err := r.Reconcile(t.Context(), control.RequestFor("node1"))
	if err != nil || result.RequeueAfter == 0 || len(r.api.patches) != 1 {
		t.Errorf("after %q: %v, %v", r.api.patches, result, err)
	}
}

// How long a node has no working agent counts, whatever the reason is in the meantime.
func TestReasonsThatAlternate(t *testing.T) {
	r := newAgentRig(t)
	r.after(unconfirmedDelay / 2)
	p := agentOf(corev1.ConditionFalse)
	must.Succeed(t, r.agents.Update(p))
	r.after(unconfirmedDelay/2 - time.Second)
	must.Succeed(t, r.agents.Delete(p))
	if got := r.after(time.Second); len(got) != 1 || !strings.Contains(got[0], ipam.AgentMissing) {
		t.Errorf("after %s: %q", unconfirmedDelay, got)
	}
}

// What failed is repeated, an object that somebody else has changed is read again, and a node
// without the object is in the metric only.
func TestNodeWithoutAgentIsShownLater(t *testing.T) {
	r := newAgentRig(t)
	r.api.err = errors.New("no")
	if r.after(time.Minute); len(r.api.patches) == 0 {
		t.Error("nothing was tried")
	}
	r.api.err = nil
	check.Equal(t, len(r.after(0)), 1, "repeated")
	must.Succeed(t, r.nodes.Delete(nodeOfOS("linux", corev1.ConditionTrue)))
	if got := r.after(time.Hour); len(got) > 0 || len(r.without) > 0 || testutil.CollectAndCount(r.metric) != 0 {
		t.Errorf("without the node: %q, %v", got, r.without)
	}
	other := nodeOfOS("linux", corev1.ConditionTrue)
	other.UID = types.UID("2")
	must.Succeed(t, r.nodes.Update(other))
	pool, _ := r.pools.Get("node1")
	must.Succeed(t, r.pools.Delete(&ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: pool.node}}))
	if got := r.after(time.Hour); len(got) > 0 || testutil.CollectAndCount(r.metric) != 1 {
		t.Errorf("without the object: %q", got)
	}
}
