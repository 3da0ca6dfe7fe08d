package pin

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
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

// asRegistry is a new pod with the reservation name registry and a generated name.
func asRegistry(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "registry-7d9f-",
		Annotations: map[string]string{policy.Annotation: "10", policy.ReserveAs: "registry"}}}
	for _, c := range change {
		c(p)
	}
	return p
}

// review has the API server call the webhook for a pod, and returns the mode and the node.
func (w *webhook) review(t *testing.T, p *corev1.Pod, isTrial bool) string {
	t.Helper()
	must.Succeed(t, w.pin(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "db",
		DryRun: &isTrial}}, p))
	mode, _, _ := strings.Cut(strings.TrimPrefix(p.Annotations[kube.AnnotationPinReason], "Reserved: "), " ")
	return mode + " " + p.Annotations[kube.AnnotationPinnedNode]
}

// Pods that are created at the same time are sent to different addresses, and those for which there
// are none left to the nodes in turn. A call of the webhook for the same pod counts once.
func TestPodsOfANameAreSentToDifferentAddresses(t *testing.T) {
	clock := noon
	w := webhookOf(clusterOf(t, map[string]*corev1.Node{"node1": node("node1"), "node2": node("node2"),
		"node3": node("node3", cordoned)}, &clock, left("a", "node1", time.Minute), left("b", "node1", time.Minute),
		left("c", "node2", time.Minute), left("d", "node3", time.Minute)))
	got, admitted := map[string]int{}, decisions.WithLabelValues(string(policy.PinRequire), string(reserved))
	before := testutil.ToFloat64(admitted)
	for i, want := range []map[string]int{{}, {}, {"require node1": 2, "require node2": 1}, {}, {},
		{"require node1": 3, "require node2": 3}} {
		p := ofDeployment()
		w.review(t, p, false)
		got[w.review(t, p, false)]++ // the API server calls the webhook again
		check.Equal(t, p.Name, "", "pod", i, "is called")
		if len(want) > 0 && !maps.Equal(got, want) {
			t.Errorf("after %d pods: %v, want %v", i+1, got, want)
		}
	}
	check.Equal(t, testutil.ToFloat64(admitted)-before, 12, "decisions in the metric")
	for story, p := range map[string]*corev1.Pod{
		"without a window": asRegistry(func(p *corev1.Pod) { delete(p.Annotations, policy.Annotation) }),
		"without a name":   asRegistry(func(p *corev1.Pod) { delete(p.Annotations, policy.ReserveAs) }),
		"an invalid name":  asRegistry(func(p *corev1.Pod) { p.Annotations[policy.ReserveAs] = "a.b" }),
	} {
		must.Succeed(t, w.pin(t.Context(), admission.Request{}, p))
		check.Equal(t, len(p.Labels), 0, story, p.Labels)
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

// Reviews of pods that nobody creates change nothing for the pods of a controller that their sender
// does not know, and only the order of the nodes for others.
func TestForgedReviews(t *testing.T) {
	of := func(uid types.UID) *corev1.Pod {
		p := ofDeployment()
		p.OwnerReferences[0].UID = uid
		return p
	}
	bare := asRegistry(func(p *corev1.Pod) { p.Spec.SchedulerName = corev1.DefaultSchedulerName })
	pinnedCopy := of("u1")
	pinnedCopy.Annotations = maps.Clone(pinnedCopy.Annotations)
	pinnedCopy.Annotations[kube.AnnotationPinnedNode] = "node2"
	for name, tt := range map[string]struct {
		forged           *corev1.Pod
		isTrial, anyNode bool
	}{
		"without a controller":     {bare, false, false},
		"another controller":       {of("u9"), false, false},
		"the controller":           {of("u1"), false, true},
		"a dry run":                {of("u1"), true, false},
		"pinned already":           {pinnedCopy, false, true},
		"pinned already, dry runs": {pinnedCopy, true, false},
		"a UID that is none":       {of(types.UID(strings.Repeat("u", 1<<20))), false, false},
	} {
		clock := noon
		w := webhookOf(clusterOf(t, map[string]*corev1.Node{"node1": node("node1"), "node2": node("node2")}, &clock,
			left("a", "node1", time.Minute), left("b", "node2", time.Minute)))
		var got []string
		for range 2 {
			for range 51 {
				w.review(t, tt.forged.DeepCopy(), tt.isTrial)
			}
			p := of("u1")
			word := w.review(t, p, false)
			want := map[string]string{"require node1": "10.0.0.a=uid-a", "require node2": "10.0.0.b=uid-b"}[word]
			if want == "" || p.Annotations[policy.ExpectedAddresses] != want {
				t.Errorf("%s: %v", name, p.Annotations)
			}
			got = append(got, word)
		}
		if !tt.anyNode && !slices.Equal(got, []string{"require node2", "require node1"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// What this replica has sent is limited, however many reviews there are.
func TestSentPodsAreLimited(t *testing.T) {
	clock := noon
	var sent sentList
	for range 2 * maxSent {
		sent.add("node1", clock)
	}
	check.Equal(t, len(sent.pods), maxSent, "remembered pods")
	clock = clock.Add(sentFor)
	sent.add("node1", clock)
	check.Equal(t, len(sent.pods), 1, "remembered pods after a while")
}

// A replica that is not the leader waits until it sees what others have decided about pods that
// were created at the same time, if there are several nodes to choose from.
func TestReplicasTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			story    string
			isLeader bool
			known    []any
			want     string
			waits    bool
		}{
			{"the leader", true, nil, "node1", false},
			{"a follower", false, []any{pinnedTo("x", "node1")}, "node2", true},
			{"a follower, one node", false, []any{left("c", "node1", time.Minute), pinnedTo("x", "node2")}, "node1",
				false},
		} {
			clock := noon
			c := clusterOf(t, map[string]*corev1.Node{"node1": node("node1"), "node2": node("node2")}, &clock,
				left("a", "node1", time.Minute), left("b", "node2", time.Minute))
			c.isLeader = func() bool { return tt.isLeader }
			began, shown := time.Now(), make(chan bool)
			if !tt.waits {
				c.add(t, pinnedTo("y", "node2"))
			}
			go func() {
				defer close(shown)
				time.Sleep(lookPause / 2)
				for _, known := range tt.known {
					c.add(t, known)
				}
			}()
			p := ofDeployment()
			check.Equal(t, webhookOf(c).review(t, p, false), "require "+tt.want, tt.story)
			if took := time.Since(began); (took > 0) != tt.waits || took > lookPause+lookSpread {
				t.Errorf("%s: it took %s", tt.story, took)
			}
			<-shown
		}
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

// Two pods are created before the watch shows that the second of the pods that they replace is
// being deleted. The webhook does not send both to the address of the first.
func TestAPodWaitsForAnotherAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := noon
		late := lives("b", "node2")
		c := clusterOf(t, map[string]*corev1.Node{"node1": node("node1"), "node2": node("node2")}, &clock,
			left("a", "node1", time.Minute), kept("b", "node2"), late, lives("c", "node3"))
		w := webhookOf(c)
		go func() {
			time.Sleep(900 * time.Millisecond)
			ending := *late
			deleting(&ending)
			c.add(t, &ending)
		}()
		for _, want := range []string{"require node1", "require node2"} {
			check.Equal(t, w.review(t, ofDeployment(), false), want)
		}
		began := time.Now()
		got := w.review(t, ofDeployment(), false)
		if took := time.Since(began); !strings.HasPrefix(got, "require ") || took != lookFor {
			t.Errorf("a third pod: %s after %s", got, took)
		}
		check.Equal(t, len(c.sent[sentIndex("db", ofDeployment())].pods), 3, "pods that were sent")
	})
}

// manyHolds is a cluster in which a reservation name has 10,000 holds on 500 nodes.
func manyHolds(t testing.TB, clock *time.Time) *cluster {
	c := clusterOf(t, map[string]*corev1.Node{"node0": node("node0")}, clock)
	for i := range 10_000 {
		c.add(t, left(fmt.Sprint(i), fmt.Sprint("node", i%500), time.Hour))
	}
	return c
}

// What a node has for a name is counted again when it has changed, and not for each pod.
func TestCountsFollowTheWatch(t *testing.T) {
	clock := noon
	c := manyHolds(t, &clock)
	name := control.NameKey("db", "registry")
	before := map[*nameOnNode]*nameCount{}
	for _, tt := range []struct {
		story         string
		change        func()
		counted, free int
	}{
		{"at the beginning", func() {}, 500, 10_000},
		{"nothing changes", func() {}, 0, 10_000},
		{"another name", func() { c.add(t, lives("c", "node7", func(p *podView) { p.For = "mirror" })) }, 0, 10_000},
		{"a pod is sent to a node", func() { c.add(t, pinnedTo("b", "node7")) }, 1, 9_999},
		{"it runs on another one", func() { c.add(t, lives("b", "node9")) }, 2, 10_000},
		{"it has ended", func() { c.remove(t, c.pod("db/b")) }, 1, 10_001},
		{"a reservation is deleted", func() { c.remove(t, left("8", "node8", time.Hour)) }, 1, 10_000},
		{"the address is not published", func() { clock = clock.Add(publishLag) }, 1, 9_999},
		{"the pod of a reservation runs on another node", func() { c.add(t, lives("3", "node4")) }, 2, 9_998},
		{"all are over", func() { clock = clock.Add(time.Hour + control.ClockLag) }, 500, 0},
	} {
		tt.change()
		counted, free, listed := 0, 0, 0
		c.targets(name, nil) // counts on all nodes
		for _, n := range c.nodesOf(name) {
			last := n.last.Load()
			if free += last.free; last != before[n] {
				counted++
			}
			listed = max(listed, len(strings.Split(last.addresses, ",")), len(strings.Split(last.expected, ",")))
			before[n] = last
		}
		check.Equal(t, counted, tt.counted, tt.story, "counted nodes")
		check.Equal(t, free, tt.free, tt.story, "free addresses")
		if listed > 12 || tt.free > 500 && listed < 12 {
			t.Errorf("%s: up to %d addresses of a node are listed, want 12", tt.story, listed)
		}
	}
}

// An admission sorts all nodes of a reservation name, but makes targets only of those that it
// compares with the pod.
func TestMemoryOfAnAdmission(t *testing.T) {
	clock := noon
	w := webhookOf(manyHolds(t, &clock))
	admit := func() { w.call(t, ofDeployment()) }
	admit() // counts
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const pods = 50
	for range pods {
		admit()
	}
	runtime.ReadMemStats(&after)
	check.Between(t, (after.TotalAlloc-before.TotalAlloc)/pods, 0, 150<<10, "bytes of an admission for 500 nodes")
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
		check.Equal(t, workloadOf(p), want)
	}
}

// Pods are admitted while the watches show others and what is unused is forgotten. In the end the
// counts are those of a replica that has just started.
func TestCountsDuringChanges(t *testing.T) {
	clock := noon
	c := clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock)
	w, done := webhookOf(c), make(chan bool)
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					w.decide("db", ofDeployment(), c.targets(control.NameKey("db", "registry"), nil))
					c.expire()
				}
			}
		})
	}
	for round := range 100 {
		for i := range 4 {
			name, on := fmt.Sprint(i), fmt.Sprint("node", (round+i)%3)
			c.add(t, kept(name, on))
			c.add(t, lives(name, on, func(p *podView) { p.UID = types.UID(fmt.Sprint(round)) }))
			if (round+i)%2 == 0 {
				c.remove(t, lives(name, on, func(p *podView) { p.UID = types.UID(fmt.Sprint(round)) }))
			}
			if round%3 == 0 {
				c.remove(t, kept(name, on))
			}
		}
	}
	close(done)
	busy.Wait()
	for _, n := range c.nodesOf(control.NameKey("db", "registry")) {
		got := c.count(n)
		if n.last.Store(nil); !reflect.DeepEqual(got, c.count(n)) {
			t.Errorf("%s: %+v, want %+v", n.node, got, c.count(n))
		}
	}
	if len(c.nodesOf(control.NameKey("db", "registry"))) == 0 {
		t.Error("it has forgotten all nodes")
	}
}
