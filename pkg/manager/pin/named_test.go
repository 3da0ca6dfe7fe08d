package pin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// left is a reservation with the name registry: a hold of ten minutes that the pod has left.
func left(pod, node string, rest time.Duration) *reservation {
	r := held(node, "1", rest)
	r.Namespace, r.Name, r.Pod, r.PodUID, r.For = "db", pod+"-"+node, pod, "uid-"+pod, "registry"
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
	p := named(name, types.UID("uid-"+name), func(p *podView) {
		p.For, p.Pinned, p.Node, p.Window, p.Started = "registry", "", node, lease.Window(10*time.Minute), node != ""
		p.Workload = "Deployment registry"
	})
	for _, c := range change {
		c(p)
	}
	return p
}

// pinnedTo is a new pod that no scheduler has placed yet.
func pinnedTo(name, node string) *podView {
	return lives(name, "", func(p *podView) { p.Pinned = node })
}

func deleting(p *podView) { p.DeletionTimestamp = &metav1.Time{Time: noon} }

// What the watch shows as deleted: a pod, and a reservation.
type (
	ended   struct{ *podView }
	deleted struct{ *reservation }
)

func TestTargetsOfAReservationName(t *testing.T) {
	evicted := func(p *podView) { p.Evicted = true }
	noSandbox := func(p *podView) { p.Started, p.BoundAt = false, noon.Add(-time.Hour) }
	of := func(change func(*reservation), r *reservation) *reservation {
		change(r)
		return r
	}
	abandoned := func(r *reservation) { r.Abandoned = true }
	had := func(p *podView) { p.Addresses = "10.0.0.7,fd00::7" }
	hasAddresses := func(r *reservation) { r.Addresses = "10.0.0.7,fd00::7" }
	published := func(after time.Duration) func(*reservation) {
		return func(r *reservation) { r.CreationTimestamp = metav1.NewTime(noon.Add(after)) }
	}
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
		{"the one that was published last is first",
			[]any{of(published(time.Minute), left("a", "node1", time.Minute)), left("b", "node2", time.Minute)},
			"node1 node2"},
		{"three of the same time, always in the same order", []any{kept("a", "node1"), lives("a", "node1", deleting),
			left("c", "node3", time.Minute), ended{lives("c", "node3")}, left("b", "node2", 2*time.Minute),
			ended{lives("b", "node2")}}, "node3 node2 node1"},
		{"two on a node", []any{left("a", "node1", time.Minute), left("b", "node1", 2*time.Minute)}, "node1 node1"},
		{"over", []any{left("a", "node1", -time.Hour)}, ""},
		{"being released by a user", []any{of(func(r *reservation) { r.Releasing = true },
			left("a", "node1", time.Minute))}, ""},
		{"an abandoned one is the last", []any{of(abandoned, left("a", "node1", 2*time.Minute)),
			left("b", "node2", time.Minute)}, "node2 node1"},

		{"a living pod has it", []any{kept("a", "node1"), lives("a", "node1")}, ""},
		{"a living pod whose sandbox is made again", []any{left("a", "node1", time.Minute), lives("a", "node1")}, ""},
		{"its pod is being deleted", []any{kept("a", "node1"), lives("a", "node1", deleting)}, "node1"},
		{"its pod has ended, and its node has not published that",
			[]any{kept("a", "node1"), ended{lives("a", "node1")}}, "node1"},
		{"its pod has failed", []any{kept("a", "node1"), lives("a", "node1", func(p *podView) { p.Failed = true })},
			"node1"},
		{"nobody has seen its pod end", []any{kept("a", "node1")}, ""},
		{"its node has published nothing yet", []any{ended{lives("a", "node1")}}, "node1"},
		{"another pod has it already, so that its reservation is deleted",
			[]any{ended{lives("a", "node1")}, deleted{kept("a", "node1")}}, ""},
		{"another pod has its address, which was never published as its own",
			[]any{ended{lives("a", "node1", had)}, of(hasAddresses, kept("b", "node1")), lives("b", "node1")}, ""},
		{"another pod on its node has another address",
			[]any{ended{lives("a", "node1", had)}, kept("b", "node1"), lives("b", "node1")}, "node1"},
		{"its node has published it long ago, and its window has ended",
			[]any{ended{lives("a", "node1")}, time.Minute}, ""},

		{"another pod was sent there", []any{left("a", "node1", time.Minute), pinnedTo("b", "node1")}, ""},
		{"another pod was sent to one of two", []any{left("a", "node1", time.Minute), pinnedTo("b", "node1"),
			left("c", "node1", 2*time.Minute)}, "node1"},
		{"another pod was pinned there, and runs elsewhere",
			[]any{left("a", "node1", time.Minute),
				lives("b", "node2", func(p *podView) { p.Pinned = "node1" })}, "node1"},
		{"another pod is bound there and has no address yet",
			[]any{left("a", "node1", time.Minute),
				lives("b", "node1", func(p *podView) { p.Started = false })}, ""},
		{"another pod there has one already",
			[]any{left("a", "node1", time.Minute), lives("b", "node1"), kept("b", "node1")}, "node1"},
		{"another pod there has one without the name", []any{left("a", "node1", time.Minute), lives("b", "node1"),
			of(func(r *reservation) { r.For = "" }, kept("b", "node1"))}, "node1"},
		{"another pod was admitted a moment ago",
			[]any{left("a", "node1", time.Minute), left("c", "node2", 2*time.Minute), "node2"}, "node1"},
		{"another pod was admitted and not created", []any{left("a", "node1", time.Minute), "node1", admissionLag},
			"node1"},
		{"another pod was sent to what is not published",
			[]any{ended{lives("a", "node1")}, pinnedTo("b", "node1")}, ""},

		{"what the manager saw is before what only a node says",
			[]any{left("b", "node9", 9*time.Minute), left("a", "node1", time.Minute), ended{lives("a", "node1")}},
			"node1 node9"},
		{"another node claims the same pod", []any{left("a", "node9", 9*time.Minute), ended{lives("a", "node1")},
			left("a", "node1", time.Minute)}, "node1"},
		{"the last pod was evicted", []any{left("a", "node1", time.Minute), ended{lives("a", "node1", evicted)}},
			"node1 evicted"},
		{"two pods have not started", []any{left("a", "node1", time.Minute), ended{lives("b", "node1", noSandbox)},
			ended{lives("c", "node1", noSandbox)}}, "node1 2 failures"},
		{"one on each of two nodes", []any{left("a", "node1", time.Minute), ended{lives("b", "node1", noSandbox)},
			ended{lives("c", "node2", noSandbox)}}, "node1"},
	} {
		clock := noon
		c := clusterOf(t, nil, &clock)
		for _, known := range tt.known {
			switch known := known.(type) {
			case string:
				c.admit("db/other", nameKey("db", "registry"), known, "")
			case time.Duration:
				clock = clock.Add(known)
			case ended:
				c.podDeleted(known.podView)
			case deleted:
				c.reservationDeleted(known.reservation)
			default:
				c.add(t, known)
			}
		}
		nodes, last := c.targets("db", "registry", "db/new")
		var got []string
		for i, n := range nodes {
			got = append(got, n.Node)
			if last[i].Evicted && last[i].Node == n.Node {
				got = append(got, "evicted")
			}
			if last[i].Failures >= maxFailures && last[i].Node == n.Node {
				got = append(got, fmt.Sprint(last[i].Failures, " failures"))
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", tt.story, strings.Join(got, " "), tt.want)
		}
	}
}

// Two replicas that do not know of each other's decisions send pods to different addresses, unless
// there are more pods than addresses. What is abandoned or not proven stays last.
func TestReplicasBeginAtDifferentEnds(t *testing.T) {
	for _, tt := range []struct{ story, leader, follower string }{
		{"all were seen", "node3 node2 node1", "node1 node2 node3"},
		{"one was not seen", "node3 node2 node1", "node2 node3 node1"},
		{"one is abandoned", "node3 node2 node1", "node2 node3 node1"},
	} {
		for want, follows := range map[string]bool{tt.leader: false, tt.follower: true} {
			clock := noon
			c := clusterOf(t, nil, &clock)
			c.isFollower = func() bool { return follows }
			for _, name := range []string{"1", "2", "3"} {
				r := left("pod"+name, "node"+name, time.Minute)
				r.Abandoned = name == "1" && tt.story == "one is abandoned"
				c.add(t, r)
				if name != "1" || tt.story != "one was not seen" {
					c.podDeleted(lives("pod"+name, "node"+name))
				}
			}
			var got []string
			nodes, _ := c.targets("db", "registry", "db/new")
			for _, n := range nodes {
				got = append(got, n.Node)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s, follower %t: %q, want %q", tt.story, follows, got, want)
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

// Pods that are created at the same time are sent to different addresses, and one for which there
// is none is not pinned. The webhook names pods that it pins.
func TestPodsOfANameAreSentToDifferentAddresses(t *testing.T) {
	clock := noon
	w := blind(t)
	nodes := map[string]*corev1.Node{"node1": node("node1"), "node2": node("node2"), "node3": node("node3", cordoned)}
	var views []any
	for i, on := range []string{"node1", "node1", "node2", "node3"} {
		r := left(fmt.Sprint("old-", i), on, time.Duration(i+1)*time.Minute)
		r.NodeUID = "uid-1"
		views = append(views, r)
	}
	w.cluster = clusterOf(t, nodes, &clock, views...)
	var got []string
	names := map[string]bool{}
	request := func(dryRun bool) admission.Request {
		return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "db", DryRun: &dryRun}}
	}
	dry := asRegistry()
	err := w.pin(t.Context(), request(true), dry)
	if err != nil || dry.Annotations[wellknown.AnnotationPinnedNode] == "" {
		t.Errorf("a dry run: %v, %v", dry.Annotations, err)
	}
	for range 4 {
		p := asRegistry()
		for range 2 { // the API server calls the webhook again
			if err := w.pin(t.Context(), request(false), p); err != nil {
				t.Fatal(err)
			}
		}
		got = append(got, p.Annotations[wellknown.AnnotationPinnedNode])
		suffix, generated := strings.CutPrefix(p.Name, p.GenerateName)
		pinned := got[len(got)-1] != ""
		if generated != pinned || pinned && len(suffix) != generatedSuffix || names[suffix] {
			t.Errorf("pod %d is called %q", len(got), p.Name)
		}
		names[suffix] = true
	}
	// node3, which has the address that was released last, is cordoned.
	if want := []string{"node2", "node1", "node1", ""}; !slices.Equal(got, want) {
		t.Errorf("pinned to %q, want %q", got, want)
	}
	for story, p := range map[string]*corev1.Pod{
		"without a window": asRegistry(func(p *corev1.Pod) { delete(p.Annotations, policy.Annotation) }),
		"without a name":   asRegistry(func(p *corev1.Pod) { delete(p.Annotations, policy.ReserveAs) }),
		"an invalid name":  asRegistry(func(p *corev1.Pod) { p.Annotations[policy.ReserveAs] = "a.b" }),
	} {
		if err := w.pin(t.Context(), request(false), p); err != nil || p.Name != "" || len(p.Labels) > 0 {
			t.Errorf("%s: %q %v %v", story, p.Name, p.Labels, err)
		}
	}
}

// ofDeployment is a new pod of the Deployment registry.
func ofDeployment() *corev1.Pod {
	return asRegistry(func(p *corev1.Pod) {
		p.Labels = map[string]string{"pod-template-hash": "7d9f"}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "registry-7d9f", Controller: new(true)}}
	})
}

// A pod is created before the watch shows that the pod which it replaces is being deleted, or was.
// The webhook waits for that. It does not wait for a pod that has no address, or of another
// workload.
func TestAPodWaitsForTheDeletionOfAnother(t *testing.T) {
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
		w := blind(t)
		old := lives("a", "node1", func(p *podView) { p.Workload, p.Started = tt.workload, tt.started })
		r := kept("a", "node1")
		r.NodeUID = "uid-1"
		w.cluster = clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock, r, old)
		shown := make(chan bool)
		go func() {
			time.Sleep(lookPause * 3 / 2)
			ending := *old
			ending.ResourceVersion = "8"
			deleting(&ending)
			if tt.gone {
				_ = w.cluster.pods.Delete(old)
				w.cluster.podDeleted(old)
			} else {
				_ = w.cluster.pods.Update(&ending)
			}
			close(shown)
		}()
		p := ofDeployment()
		err := w.pin(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "db"}}, p)
		if got := p.Annotations[wellknown.AnnotationPinnedNode]; got != tt.want || err != nil {
			t.Errorf("%s: pinned to %q, want %q, %v", tt.story, got, tt.want, err)
		}
		<-shown
	}
}

// Two pods are replaced at once, and the watch shows the deletion of one of them later. The leader
// and the follower send the new pods to different nodes.
func TestReplicasWaitForAllDeletions(t *testing.T) {
	var got []string
	for _, isFollower := range []bool{false, true} {
		clock := noon
		w := blind(t)
		a, b := lives("a", "node1", deleting), lives("b", "node2")
		atA, atB := kept("a", "node1"), kept("b", "node2")
		atA.NodeUID, atB.NodeUID = "uid-1", "uid-1"
		w.cluster = clusterOf(t, map[string]*corev1.Node{"node1": node("node1"), "node2": node("node2")}, &clock, a, b,
			atA, atB)
		w.cluster.isFollower = func() bool { return isFollower }
		shown := make(chan bool)
		go func() {
			time.Sleep(lookPause / 2)
			ending := *b
			ending.ResourceVersion = "8"
			deleting(&ending)
			_ = w.cluster.pods.Update(&ending)
			close(shown)
		}()
		p := ofDeployment()
		err := w.pin(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "db"}}, p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, p.Annotations[wellknown.AnnotationPinnedNode])
		<-shown
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"node1", "node2"}) {
		t.Errorf("the replicas send pods to %q", got)
	}
}

// A generated name is like that of the API server, and not the name of another pod.
func TestGeneratedNames(t *testing.T) {
	clock := noon
	c := clusterOf(t, nil, &clock)
	long := asRegistry(func(p *corev1.Pod) { p.GenerateName = strings.Repeat("a", 80) + "-" })
	if name := c.nameOf("db", long); len(name) != 63 || !strings.HasPrefix(name, strings.Repeat("a", 58)) {
		t.Errorf("%q", name)
	}
	if name := c.nameOf("db", asRegistry(func(p *corev1.Pod) { p.Name = "registry-0" })); name != "registry-0" {
		t.Errorf("%q", name)
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

// Pods of another workload with the same name get an Event, those of another namespace or of the
// next ReplicaSet none.
func TestSharedReservationName(t *testing.T) {
	other := func(change func(*podView)) *podView {
		return lives("other", "node2", func(p *podView) { p.Workload = "Deployment mirror" }, change)
	}
	const want = `a ReservationShared: Deployment registry and Deployment mirror use the reservation name "registry"`
	for story, c := range map[string]struct {
		other *podView
		want  string
	}{
		"another workload":         {other(func(*podView) {}), want},
		"that is being deleted":    {other(deleting), ""},
		"the same workload":        {other(func(p *podView) { p.Workload = "Deployment registry" }), ""},
		"another namespace":        {other(func(p *podView) { p.Namespace = "web" }), ""},
		"another reservation name": {other(func(p *podView) { p.For = "mirror" }), ""},
	} {
		clock := noon
		p := lives("a", "node1")
		var reported []string
		e := &explainer{cluster: clusterOf(t, nil, &clock, p, c.other), report: words(&reported)}
		for range 2 {
			if _, err := e.Reconcile(t.Context(), request("a")); err != nil {
				t.Fatal(err)
			}
		}
		got := strings.Join(reported, "; ")
		if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) || len(reported) > 1 {
			t.Errorf("%s: %q, want %q", story, got, c.want)
		}
	}
}

// A pod that started elsewhere than where an address for its name is held gets an Event.
func TestNamedPodStartedElsewhere(t *testing.T) {
	for story, c := range map[string]struct {
		node, want string
	}{
		"there":     {"node1", ""},
		"elsewhere": {"node2", "a AddressChanged: started on node2, but node1 has kept 10.0.0.7: node1 is cordoned"},
	} {
		clock := noon
		p := lives("a", c.node, func(p *podView) { p.Reason = "NodeCordoned: node1 is cordoned" })
		r := left("b", "node1", time.Minute)
		r.Addresses = "10.0.0.7"
		var reported []string
		e := &explainer{cluster: clusterOf(t, nil, &clock, p, r), report: words(&reported)}
		if _, err := e.Reconcile(t.Context(), request("a")); err != nil {
			t.Fatal(err)
		}
		reported = slices.DeleteFunc(reported, func(s string) bool { return strings.Contains(s, reasonNotPossible) })
		if got := strings.Join(reported, "; "); got != c.want {
			t.Errorf("%s: %q, want %q", story, got, c.want)
		}
	}
}

// The evictor takes the reservations with the name of a required pod that no living pod has.
func TestReservationsForANamedPod(t *testing.T) {
	clock := noon
	c := clusterOf(t, nil, &clock, left("a", "node1", time.Minute), kept("b", "node1"), lives("b", "node1"))
	got := c.reservationsFor(pinnedTo("new", "node1"))
	if len(got) != 1 || got[0].Pod != "a" {
		t.Errorf("%v", got)
	}
}
