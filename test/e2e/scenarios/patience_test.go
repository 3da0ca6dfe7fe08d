package scenarios

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// oneEach gives every node one unit of an extended resource until the scenario ends, and returns an
// option for pods that need it: each node has room for one of them.
func (t *Test) oneEach() Option {
	slot := "leasehold.dev/" + t.NS
	for _, name := range t.Cluster.NodeNames() {
		patch := func(value string) {
			t.Kubectl("patch", "node", name, "--subresource=status", "--type=merge",
				fmt.Sprintf(`--patch={"status":{"capacity":{%q:%s},"allocatable":{%[1]q:%[2]s}}}`, slot, value))
		}
		patch(strconv.Quote("1"))
		t.Cleanup(func() { patch("null") })
	}
	return func(template *corev1.PodTemplateSpec) {
		one := corev1.ResourceList{corev1.ResourceName(slot): resource.MustParse("1")}
		template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
	}
}

// away scales a set of one to zero, when the reservation of its pod is published, and has another
// pod start on its node. It returns the former pod, and the set of the other one.
func (s *Set) away(options ...Option) (before Pods, filler *Set) {
	before = s.Ready()
	s.t.published(before)
	s.Scale(0)
	p := before[s.Name+"-0"]
	return before, s.t.Echoserver(fmt.Sprintf("filler-%.8s", p.UID), s.t.NodeOf(p), 1, append(options, KeptFor(""))...)
}

// replaced checks how many pods were replaced so far because their nodes did not accept them.
func (t *Test) replaced(want int) {
	t.Helper()
	if events := t.events(t.NS, "reason=PodReplaced"); len(events) != want {
		t.Fatalf("%d pods were replaced, want %d: %q", len(events), want, messages(events))
	}
}

// priority creates a priority class, and gives pods that class.
func (t *Test) priority(value int32) Option {
	name := fmt.Sprintf("%s-%d", t.NS, value)
	t.Kubectl("create", "priorityclass", name, fmt.Sprint("--value=", value))
	t.Cleanup(func() { t.Kubectl("delete", "priorityclass", name) })
	return func(template *corev1.PodTemplateSpec) { template.Spec.PriorityClassName = name }
}

// pinFull has other pods take the room on a pod's node while the pod is away, or not end there.
func pinFull(t *Test) {
	need := t.oneEach()
	for count, mode := range []string{"prefer", "require"} {
		set := t.Echoserver(mode, nil, 1, Pin(mode), need)
		before, filler := set.away(need)
		t.Step("%s: a pod of the same priority has taken its node, so it runs elsewhere", mode)
		set.Scale(1)
		p := t.moved(before, set.Ready(), mode+"-0")
		t.EventOf(p, "AddressChanged", filler.Node.Name)
		t.replaced(count)
		filler.Scale(0)
		set.Scale(0)
	}

	t.Step("a pod with a patience waits until its node has room")
	set := t.Echoserver("patient", nil, 1, Patience("10m"), need)
	before, filler := set.away(need)
	set.Scale(1)
	waiting := set.waits("patient-0", before)
	filler.Scale(0)
	after := set.Ready()
	t.onSameNodes(before, after)
	if after["patient-0"].UID != waiting.UID {
		t.Fatalf("the pod that waited was replaced")
	}
	set.Scale(0)

	t.Step("its patience is over: it runs elsewhere, and returns there")
	set = t.Echoserver("impatient", nil, 1, Patience("20s"), need)
	before, filler = set.away(need)
	set.Scale(1)
	waiting = set.waits("impatient-0", before)
	p := t.moved(before, set.ReadyBut(Pods{"impatient-0": waiting}), "impatient-0")
	t.EventOf(waiting, "PodReplaced", "waited 20s for "+filler.Node.Name)
	t.EventOf(p, "AddressChanged", filler.Node.Name)
	second := set.Ready()
	t.published(second)
	t.onSameNodes(second, set.Recreate())
	set.Scale(0)
	filler.Scale(0)

	t.Step("a pod without a controller whose patience is forever waits on")
	bare := t.bare("bare", nil, Pin("require"), Patience("forever"), need)
	t.createPod(bare)
	first := t.running("bare")
	t.published(Pods{"bare": first})
	t.Must(t.Client.CoreV1().Pods(t.NS).Delete(t.Ctx, "bare", metav1.DeleteOptions{}))
	t.gone("pod/bare")
	filler = t.Echoserver("forever", t.NodeOf(first), 1, KeptFor(""), need)
	again := t.createPod(bare)
	t.Sleep(15 * time.Second) // three times the patience that it would have otherwise
	p2, err := t.Client.CoreV1().Pods(t.NS).Get(t.Ctx, "bare", metav1.GetOptions{})
	t.Must(err)
	if p2.UID != again.UID || p2.Spec.NodeName != "" {
		t.Fatalf("it is on %q, and was created %s", p2.Spec.NodeName, p2.CreationTimestamp)
	}
	filler.Scale(0)
	t.onSameNodes(Pods{"bare": first}, Pods{"bare": t.running("bare")})
	t.Must(t.Client.CoreV1().Pods(t.NS).Delete(t.Ctx, "bare", metav1.DeleteOptions{}))

	t.Step("a pod preempts one of lower priority on its node, which takes 20 s to end: longer than the patience")
	set = t.Echoserver("urgent", nil, 1, need, t.priority(1000))
	before, filler = set.away(need, Stubborn(20*time.Second), t.priority(1))
	set.Scale(1)
	t.onSameNodes(before, set.Ready())
	t.replaced(2)
	filler.Scale(0)
	set.Scale(0)

	t.Step("a pod of a reservation name takes 20 s to end on a node with room for one")
	registry := t.Named("registry", nil, 1, unavailable(1), need, preferring(t.Node(1)), Stubborn(20*time.Second))
	before = registry.Ready()
	t.published(before)
	t.sameSet("rollout", before, registry.Rollout())
	t.replaced(2)
}

func pinFrozen(t *Test) {
	t.Must(t.Cluster.WaitDeployed(t.Ctx)) // after an outage they are not ready at once
	managers := t.Managers()
	if len(managers) != 2 {
		t.Fatalf("there are %d managers", len(managers))
	}
	need := t.oneEach()
	full := t.Echoserver("full", nil, 1, need)
	set := t.Echoserver("echoserver", nil, 6)
	for i, name := range []string{"one", "the other"} {
		t.Step("%s manager is frozen: a pod whose node is full is replaced", name)
		before, filler := full.away(need)
		resume := t.Freeze(managers[i])
		full.Scale(1)
		t.moved(before, full.Ready(), "full-0")
		t.Step("and pods are recreated; each starts")
		set.Recreate()
		filler.Scale(0)
		// The kubelet restarts a container that is frozen for a minute.
		resume()
		t.Must(t.Cluster.WaitDeployed(t.Ctx))
	}
	t.Step("both are frozen: pods are admitted without them")
	for _, m := range managers {
		t.Freeze(m)
	}
	set.Recreate()
}

func pinKilled(t *Test) {
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	set := t.Echoserver("echoserver", nil, 6)
	before := set.Ready()
	t.published(before)
	t.Step("the scheduler is away for a minute while all pods are deleted; then both managers are killed")
	run := t.WithoutControl(cluster.Scheduler)
	set.Delete(before)
	t.Becomes("new pods that are pinned", len(before), func() any {
		pods := set.Pods()
		maps.DeleteFunc(pods, func(name string, p corev1.Pod) bool {
			return p.UID == before[name].UID || p.Annotations[pinnedNode] == ""
		})
		return len(pods)
	})
	t.Sleep(time.Minute)
	for _, m := range t.Managers() {
		t.Signal(m, "KILL")
	}
	t.Step("the scheduler runs again: no manager is needed for the pods to start on their nodes")
	run()
	t.onSameNodes(before, set.ReadyBut(before))
	t.replaced(0)
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
}

// waits waits until the pod that replaces another is unschedulable, and returns it.
func (s *Set) waits(name string, old Pods) corev1.Pod {
	var waiting corev1.Pod
	s.t.Eventually("the new pod waits", func() error {
		p, found := s.Pods()[name]
		switch {
		case !found || p.UID == old[name].UID:
			return errors.New("there is none")
		case p.Spec.NodeName != "":
			s.t.Fatalf("it was sent to %s: %s", p.Spec.NodeName, p.Annotations[pinReason])
		case !slices.ContainsFunc(p.Status.Conditions,
			func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }):
			return errors.New("the scheduler has not tried it")
		}
		waiting = p
		return nil
	})
	return waiting
}
