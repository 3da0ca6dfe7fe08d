package pin

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// left is a reservation with the name registry: a hold of ten minutes that the pod has left.
func left(pod, node string, rest time.Duration) *reservation {
	r := held(node, "1", rest)
	r.Namespace, r.Name, r.Pod, r.PodUID, r.For = "db", pod+"-"+node, pod, "uid-"+pod, "registry"
	r.UID, r.Addresses, r.Primary = types.UID("uid-"+r.Name), "10.0.0."+pod, "10.0.0."+pod
	return r
}

// kept is the reservation of a pod that has its address.
func kept(pod, node string) *reservation {
	r := left(pod, node, 0)
	r.Bound, r.Until = true, time.Time{}
	return r
}

// lives is a pod with the reservation name registry.
func lives(name, node string, change ...func(*podView)) *podView {
	p := runs(types.UID("uid-"+name), func(p *podView) {
		p.Name, p.For, p.Node, p.Window = name, "registry", node, lease.Window(10*time.Minute)
		p.Started, p.Addresses, p.Workload = node != "", "10.0.0."+name, "Deployment registry"
	})
	for _, c := range change {
		c(p)
	}
	return p
}

// pinnedTo is a new pod that no scheduler has placed yet.
func pinnedTo(name, node string) *podView {
	return lives(name, "", func(p *podView) { p.Pinned, p.Sent, p.Addresses = node, node, "" })
}

func deleting(p *podView) { p.DeletionTimestamp = &metav1.Time{Time: noon} }

// What the watch shows as deleted: a pod, or a reservation.
type (
	ended   struct{ *podView }
	deleted struct{ *reservation }
)

func TestTargetsOfAReservationName(t *testing.T) {
	noSandbox := func(p *podView) { p.Started, p.Addresses, p.BoundAt = false, "", noon.Add(-time.Hour) }
	of := func(change func(*reservation), r *reservation) *reservation {
		change(r)
		return r
	}
	had := func(p *podView) { p.Addresses = "10.0.0.7,fd00::7" }
	hasAddresses := func(r *reservation) { r.Addresses, r.Primary = "10.0.0.7,fd00::7", "10.0.0.7" }
	for _, tt := range []struct {
		story string
		known []any
		want  string // the nodes, the best first
	}{
		{"nothing is held", nil, ""},
		{"a hold", []any{left("a", "node1", time.Minute)}, "node1"},
		{"another name's", []any{of(func(r *reservation) { r.For = "other" }, left("a", "node1", time.Minute))}, ""},
		{"another namespace's", []any{of(func(r *reservation) { r.Namespace = "web" },
			left("a", "node1", time.Minute))}, ""},
		{"a pod of that name", []any{of(func(r *reservation) { r.For = "" },
			left("registry", "node1", time.Minute))}, ""},
		{"its name has changed", []any{left("a", "node1", time.Minute),
			of(func(r *reservation) { r.For, r.ResourceVersion = "other", "2" }, left("a", "node1", time.Minute))}, ""},
		{"three, always in the same order", []any{kept("a", "node1"), lives("a", "node1", deleting),
			left("c", "node3", time.Minute), ended{lives("c", "node3")}, left("b", "node2", 2*time.Minute),
			ended{lives("b", "node2")}}, "node2 node3 node1"},
		{"two on a node", []any{left("a", "node1", time.Minute), left("b", "node1", 2*time.Minute)}, "node1"},
		{"over", []any{left("a", "node1", -time.Hour)}, ""},
		{"over after a while", []any{left("a", "node1", time.Minute), time.Minute + control.ClockLag}, ""},
		{"over soon", []any{left("a", "node1", time.Minute), time.Minute + control.ClockLag - 1}, "node1"},
		{"forever", []any{of(func(r *reservation) { r.Until = time.Time{} }, left("a", "node1", 0)), 24 * time.Hour},
			"node1"},
		{"being released by a user", []any{of(func(r *reservation) { r.Releasing = true },
			left("a", "node1", time.Minute))}, ""},
		{"being released by a user, right after its pod has ended", []any{ended{lives("a", "node1")},
			of(func(r *reservation) { r.Releasing = true }, left("a", "node1", time.Minute))}, ""},

		{"a living pod has it", []any{kept("a", "node1"), lives("a", "node1")}, ""},
		{"a living pod whose sandbox is created again", []any{left("a", "node1", time.Minute), lives("a", "node1")},
			""},
		{"its pod is being deleted", []any{kept("a", "node1"), lives("a", "node1", deleting)}, "node1"},
		{"its pod has ended, and its node has not published that",
			[]any{kept("a", "node1"), ended{lives("a", "node1")}}, "node1"},
		{"the same, for longer than a node needs for that",
			[]any{kept("a", "node1"), ended{lives("a", "node1")}, 2 * publishLag}, "node1"},
		{"its pod has failed", []any{kept("a", "node1"), lives("a", "node1", func(p *podView) { p.Failed = true })},
			"node1"},
		{"nobody has seen its pod end", []any{kept("a", "node1")}, ""},
		{"its node has published nothing yet", []any{ended{lives("a", "node1")}}, "node1"},
		{"another pod has it already, so that its reservation is deleted",
			[]any{ended{lives("a", "node1")}, deleted{kept("a", "node1")}}, ""},
		{"another pod has its address, which was never published as its own",
			[]any{ended{lives("a", "node1", had)}, of(hasAddresses, kept("b", "node1")), lives("b", "node1", had)}, ""},
		{"another pod on its node has another address",
			[]any{ended{lives("a", "node1", had)}, kept("b", "node1"), lives("b", "node1")}, "node1"},
		{"its node should have published it long ago", []any{ended{lives("a", "node1")}, publishLag}, ""},

		{"another pod was sent there", []any{left("a", "node1", time.Minute), pinnedTo("b", "node1")}, ""},
		{"another pod was sent to one of two", []any{left("a", "node1", time.Minute), pinnedTo("b", "node1"),
			left("c", "node1", 2*time.Minute)}, "node1"},
		{"another pod was pinned there, and runs elsewhere",
			[]any{left("a", "node1", time.Minute),
				lives("b", "node2", func(p *podView) { p.Sent = "node1" })}, "node1"},
		{"another pod is bound there and has no address yet",
			[]any{left("a", "node1", time.Minute),
				lives("b", "node1", func(p *podView) { p.Started, p.Addresses = false, "" })}, ""},
		{"another pod there has one already",
			[]any{left("a", "node1", time.Minute), lives("b", "node1"), kept("b", "node1")}, "node1"},
		{"another pod there has one without the name", []any{left("a", "node1", time.Minute), lives("b", "node1"),
			of(func(r *reservation) { r.For = "" }, kept("b", "node1"))}, "node1"},
		{"another pod was admitted a moment ago",
			[]any{left("a", "node1", time.Minute), left("c", "node2", 2*time.Minute), "node1"},
			"node2 node1 contested"},
		{"another pod was admitted, and is shown", []any{left("a", "node1", time.Minute),
			left("c", "node1", 2*time.Minute), "node1", pinnedTo("b", "node1")}, "node1"},
		{"another pod was admitted and not created", []any{left("a", "node1", time.Minute), "node1", sentFor}, "node1"},
		{"another pod was sent to one that ends only then",
			[]any{lives("a", "node1", deleting), "node1", ended{lives("a", "node1", deleting)}}, "node1 contested"},
		{"another pod was sent to what is not published",
			[]any{ended{lives("a", "node1")}, pinnedTo("b", "node1")}, ""},
		{"the pod that was sent there is deleted",
			[]any{left("a", "node1", time.Minute), ended{pinnedTo("b", "node1")}}, "node1"},

		{"what the manager saw is before what only a node says",
			[]any{left("b", "node3", 9*time.Minute), left("a", "node1", time.Minute), ended{lives("a", "node1")}},
			"node1 node3"},
		{"another node claims the same pod", []any{left("a", "node9", 9*time.Minute), ended{lives("a", "node1")},
			left("a", "node1", time.Minute)}, "node1"},
		{"another node claims a pod that lives", []any{lives("a", "node1"), kept("a", "node1"),
			left("a", "node9", 9*time.Minute)}, ""},
		{"the last pod was evicted", []any{left("a", "node1", time.Minute),
			ended{lives("a", "node1", func(p *podView) { p.Evicted = true })}}, "node1 evicted"},
		{"two pods have not started", []any{left("a", "node1", time.Minute), ended{lives("b", "node1", noSandbox)},
			ended{lives("c", "node1", noSandbox)}}, "node1 failed"},
		{"one on each of two nodes", []any{left("a", "node1", time.Minute), ended{lives("b", "node1", noSandbox)},
			ended{lives("c", "node2", noSandbox)}}, "node1"},
		{"a pod did not get there", []any{left("a", "node1", time.Minute),
			ended{lives("b", "", func(p *podView) { p.Pinned, p.Sent, p.Unschedulable = "node1", "node1", true })}},
			"node1 struck"},
		{"a pod was bound elsewhere", []any{left("a", "node1", time.Minute),
			lives("b", "node2", func(p *podView) { p.Pinned, p.Sent = "node1", "node1" })}, "node1 struck"},
	} {
		clock := noon
		c := clusterOf(t, nil, &clock)
		for _, known := range tt.known {
			switch known := known.(type) {
			case string:
				c.send(control.NameKey("db", "registry"), known, true)
			case time.Duration:
				clock = clock.Add(known)
				c.recent.Expire()
			case ended:
				c.remove(t, known.podView)
			case deleted:
				c.remove(t, known.reservation)
			default:
				c.add(t, known)
			}
		}
		var got []string
		for _, target := range c.targetsOf("db", "", "registry") {
			got = append(got, target.Node)
			for word, is := range map[string]bool{"evicted": target.Last.Evicted, "struck": target.Struck,
				"failed": target.Last.Failures >= maxFailures, "contested": target.Contested} {
				if is {
					got = append(got, word)
				}
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", tt.story, strings.Join(got, " "), tt.want)
		}
	}
}

// A new pod is told of each address that no living pod has, and of the pods that had it.
func TestExpectedAddresses(t *testing.T) {
	at := func(p *podView) { p.Addresses = "10.0.0.a,fd00::a" }
	for _, tt := range []struct {
		story           string
		known           []any
		addresses, want string
	}{
		{"held", []any{left("a", "node1", time.Minute)}, "10.0.0.a", "10.0.0.a=uid-a"},
		{"its pod is being deleted", []any{kept("a", "node1"), lives("a", "node1", deleting)}, "10.0.0.a",
			"10.0.0.a=uid-a"},
		{"two, and a living pod has another one", []any{left("c", "node1", time.Minute), lives("b", "node1"),
			ended{lives("a", "node1")}, kept("b", "node1")}, "10.0.0.a,10.0.0.c", "10.0.0.a=uid-a,10.0.0.c=uid-c"},
		{"two pods had it", []any{left("a", "node1", time.Minute), ended{lives("b", "node1", at)}}, "10.0.0.a",
			"10.0.0.a=uid-a,10.0.0.a=uid-b"},
		{"a living pod has it now", []any{left("a", "node1", time.Minute), lives("b", "node1", at),
			left("c", "node1", time.Minute)}, "10.0.0.c", "10.0.0.c=uid-c"},
	} {
		clock := noon
		c := clusterOf(t, nil, &clock)
		for _, known := range tt.known {
			if known, is := known.(ended); is {
				c.remove(t, known.podView)
				continue
			}
			c.add(t, known)
		}
		targets := c.targetsOf("db", "", "registry")
		if len(targets) != 1 || targets[0].Addresses != tt.addresses || targets[0].Expected != tt.want {
			t.Errorf("%s: %+v, want %s and %s", tt.story, targets, tt.addresses, tt.want)
		}
	}
}

// Two replicas that do not know of each other's decisions send pods to different addresses, unless
// there are more pods than addresses. What is not proven stays last.
func TestReplicasBeginAtDifferentEnds(t *testing.T) {
	for _, tt := range []struct {
		story            string
		unseen           string
		leader, follower string
	}{
		{"all were seen", "", "node2 node3 node1", "node1 node3 node2"},
		{"one was not seen", "1", "node2 node3 node1", "node3 node2 node1"},
	} {
		for want, isLeader := range map[string]bool{tt.leader: true, tt.follower: false} {
			clock := noon
			c := clusterOf(t, nil, &clock)
			c.isLeader = func() bool { return isLeader }
			for _, name := range []string{"1", "2", "3"} {
				c.add(t, left("pod"+name, "node"+name, time.Minute))
				if name != tt.unseen {
					c.remove(t, lives("pod"+name, "node"+name))
				}
			}
			var got []string
			for _, target := range c.targetsOf("db", "", "registry") {
				got = append(got, target.Node)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s, leader %t: %q, want %q", tt.story, isLeader, got, want)
			}
		}
	}
}

// asRegistry is a new pod with the reservation name registry and a generated name.
func asRegistry(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "registry-7d9f-",
		Annotations: map[string]string{policy.Annotation: "10", policy.ReserveAs: "registry"}}}
	for _, c := range change {
		c(p)
	}
	return p
}

// Pods that are created at the same time are sent to different addresses, and the next one is
// preferred where the others are. A call of the webhook for the same pod counts once, a dry run not
// at all.
func TestPodsOfANameAreSentToDifferentAddresses(t *testing.T) {
	clock := noon
	w := webhookOf(clusterOf(t, map[string]*corev1.Node{"node1": node("node1"), "node2": node("node2"),
		"node3": node("node3", cordoned)}, &clock, left("a", "node1", time.Minute), left("b", "node1", time.Minute),
		left("c", "node2", time.Minute), left("d", "node3", time.Minute)))
	var got []string
	for i := range 5 {
		p := ofDeployment()
		for range 2 { // the API server calls the webhook again
			dryRun := i == 0
			must(t, w.pin(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "db",
				DryRun: &dryRun}}, p))
		}
		if p.Name != "" {
			t.Errorf("pod %d is called %q", i, p.Name)
		}
		mode, _, _ := strings.Cut(strings.TrimPrefix(p.Annotations[kube.AnnotationPinReason], "Reserved: "), " ")
		if i > 0 {
			got = append(got, mode+" "+p.Annotations[kube.AnnotationPinnedNode])
		}
	}
	slices.Sort(got)
	if want := []string{"prefer node1", "require node1", "require node1", "require node2"}; !slices.Equal(got, want) &&
		got[0] != "prefer node2" {
		t.Errorf("%q, want %q", got, want)
	}
	for story, p := range map[string]*corev1.Pod{
		"without a window": asRegistry(func(p *corev1.Pod) { delete(p.Annotations, policy.Annotation) }),
		"without a name":   asRegistry(func(p *corev1.Pod) { delete(p.Annotations, policy.ReserveAs) }),
		"an invalid name":  asRegistry(func(p *corev1.Pod) { p.Annotations[policy.ReserveAs] = "a.b" }),
	} {
		if must(t, w.pin(t.Context(), admission.Request{}, p)); len(p.Labels) > 0 {
			t.Errorf("%s: %v", story, p.Labels)
		}
	}
}

// ofDeployment is a new pod of the Deployment registry.
func ofDeployment() *corev1.Pod {
	return asRegistry(func(p *corev1.Pod) {
		p.Labels = map[string]string{"pod-template-hash": "7d9f"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "registry-7d9f",
			Controller: new(true)}}
		p.Spec.SchedulerName = corev1.DefaultSchedulerName
	})
}

// A pod is created before the watch shows that the pod which it replaces is being deleted, or was.
// The webhook waits for that. It does not wait for a pod that has no address, or of another
// workload.
func TestAPodWaitsForTheDeletionOfAnother(t *testing.T) {
	synctest.Test(t, testAPodWaitsForTheDeletionOfAnother)
}

func testAPodWaitsForTheDeletionOfAnother(t *testing.T) {
	for _, tt := range []struct {
		story, workload string
		started, gone   bool
		want            string
	}{
		{"is being deleted", "Deployment registry", true, false, "node1"},
		{"was force-deleted", "Deployment registry", true, true, "node1"},
		{"has not started", "Deployment registry", false, false, ""},
		{"is of another workload", "Deployment mirror", true, false, ""},
	} {
		clock := noon
		old := lives("a", "node1", func(p *podView) { p.Workload, p.Started = tt.workload, tt.started })
		c := clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock, kept("a", "node1"), old)
		w := webhookOf(c)
		shown := make(chan bool)
		go func() {
			defer close(shown)
			time.Sleep(900 * time.Millisecond) // as late as a watch on a busy machine
			if tt.gone {
				c.remove(t, old)
				return
			}
			ending := *old
			deleting(&ending)
			c.add(t, &ending)
		}()
		p := ofDeployment()
		err := w.pin(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "db"}}, p)
		if got := p.Annotations[kube.AnnotationPinnedNode]; got != tt.want || err != nil {
			t.Errorf("%s: pinned to %q, want %q, %v", tt.story, got, tt.want, err)
		}
		<-shown
	}
}

func TestWorkloadOf(t *testing.T) {
	controller := func(kind, name string, labels map[string]string) *corev1.Pod {
		return asRegistry(func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}}
			p.Labels = labels
		})
	}
	for want, p := range map[string]*corev1.Pod{
		"pods registry-7d9f-*": asRegistry(),
		"pod registry-0": asRegistry(func(p *corev1.Pod) {
			p.Name, p.GenerateName = "registry-0", ""
		}),
		"Deployment registry": controller("ReplicaSet", "registry-7d9f",
			map[string]string{"pod-template-hash": "7d9f"}),
		"ReplicaSet registry-7d9f":      controller("ReplicaSet", "registry-7d9f", nil),
		"VirtualMachineInstance fedora": controller("VirtualMachineInstance", "fedora", nil),
	} {
		if got := workloadOf(p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
