package pin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// The paths of what these tests write.
const (
	pod0    = "/api/v1/namespaces/db/pods/db-0"
	gateOff = `{"metadata":{"uid":"u1"},"spec":{"schedulingGates":[{"$patch":"delete",` +
		`"name":"leasehold.dev/nominate"}]}}`
)

func meter(t testing.TB) *collectors {
	t.Helper()
	m, err := newCollectors(prometheus.NewRegistry(), func() float64 { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "db", Name: name}}
}

func TestEvictor(t *testing.T) {
	clock := noon
	p := named("db-0", "u1", func(p *podView) {
		p.Required, p.Controlled, p.Gates = true, true, 1
		p.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
	})
	r := &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "r1", UID: "ru"}, Pod: "db-0", Node: "node1",
		ID: "00000000000000a1"}
	a := newAPI(t)
	var reported []string
	v := &evictor{cluster: clusterOf(t, map[string]*corev1.Node{"node1": node("node1", cordoned)}, &clock, p, r),
		client:  a.client,
		timeout: time.Minute, collectors: meter(t), report: words(&reported), log: logr.Discard(),
		waiting: map[types.NamespacedName]wait{}}
	look := func(story string, again time.Duration, calls ...string) {
		t.Helper()
		result, err := v.Reconcile(context.Background(), request("db-0"))
		if err != nil || result.RequeueAfter != again {
			t.Errorf("%s: again after %v, want %v; %v", story, result.RequeueAfter, again, err)
		}
		a.saw(t, story, calls...)
	}
	become := func(change func(*podView)) {
		next := *p
		change(&next)
		p = &next
		v.cluster.add(t, p)
	}

	look("somebody else holds it", 0)
	become(func(p *podView) { p.Gates, p.Unschedulable = 0, true })
	look("it was held for an hour, and waits from now on", time.Minute)
	clock = clock.Add(20 * time.Second)
	look("a while later", 40*time.Second)
	clock = clock.Add(40 * time.Second)
	look("its time is over: the mark, and nothing else yet", markDelay,
		`PATCH /apis/ipam.leasehold.dev/v1alpha1/namespaces/db/ipreservations/r1 `+
			`{"metadata":{"annotations":{"leasehold.dev/pin-abandoned":"00000000000000a1"},"uid":"ru"}}`)
	marked := *r
	marked.Abandoned = true
	v.cluster.add(t, &marked)
	a.answer = func(string, *http.Request) (int, any) { return http.StatusConflict, nil }
	evict := `DELETE ` + pod0 +
		` {"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"u1","resourceVersion":"7"}}`
	look("it has been bound meanwhile, say", 0, evict)
	if len(reported) > 0 {
		t.Errorf("reported of what was not done: %v", reported)
	}
	a.answer = func(string, *http.Request) (int, any) { return 0, nil }
	look("marked: this pod as it was seen, and no other", 0, evict)
	want := []string{"db-0 PodEvicted: evicted after it waited 1m0s for node1; its successor may run elsewhere: " +
		"node1 is cordoned"}
	if !slices.Equal(reported, want) {
		t.Errorf("reported %q, want %q", reported, want)
	}

	become(func(p *podView) { p.UID = "u2" })
	look("another pod of that name begins anew", time.Minute)
	become(func(p *podView) { p.Unschedulable = false })
	look("it has come through", 0)
	if len(v.waiting) > 0 {
		t.Errorf("it remembers %v", v.waiting)
	}
}

var errUnreadable = errors.New("cannot be read")

// A pod is evicted only if it is known how its node is and if its reservations are marked.
func TestEvictorReturnsErrors(t *testing.T) {
	clock := noon
	a := newAPI(t)
	p := named("db-0", "u1", func(p *podView) { p.Required, p.Controlled, p.Unschedulable = true, true, true })
	r := &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "r1", UID: "ru"}, Pod: "db-0", Node: "node1",
		ID: "00000000000000a1"}
	var reported []string
	v := &evictor{cluster: clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock, p, r),
		client: a.client, timeout: time.Minute, collectors: meter(t), report: words(&reported), log: logr.Discard(),
		waiting: map[types.NamespacedName]wait{request("db-0").NamespacedName: {"u1", noon.Add(-time.Hour)}}}
	nodes := v.cluster.reader
	v.cluster.reader = unreadableIf{nodes, func(client.Object) bool { return true }}
	if _, err := v.Reconcile(t.Context(), request("db-0")); !errors.Is(err, errUnreadable) {
		t.Errorf("the node cannot be read: %v", err)
	}
	a.saw(t, "the node cannot be read")
	v.cluster.reader = nodes
	a.answer = func(string, *http.Request) (int, any) { return http.StatusForbidden, nil }
	if _, err := v.Reconcile(t.Context(), request("db-0")); !apierrors.IsForbidden(err) {
		t.Errorf("the reservation cannot be marked: %v", err)
	}
	if len(a.calls) != 1 || !strings.HasPrefix(a.calls[0], http.MethodPatch) || len(reported) > 0 {
		t.Errorf("the reservation cannot be marked: %q, reported %q", a.calls, reported)
	}
}

func TestSweep(t *testing.T) {
	clock := noon
	a := newAPI(t)
	reservation := func(name, node, uid string) *reservation {
		return &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID("u-" + name)},
			Node: node, NodeUID: uid}
	}
	s := &sweeper{limit: callTimeout, live: a.client, client: a.client, log: logr.Discard(),
		missing: map[types.UID]time.Time{},
		cluster: clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock,
			reservation("here", "node1", "uid-1"), reservation("gone", "node2", "uid-2"),
			reservation("kept", "node3", "uid-3"))}
	a.answer = func(call string, _ *http.Request) (int, any) {
		switch {
		case strings.HasSuffix(call, "/nodes/node3"): // the cache is late: it is there
			return 0, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{Name: "node3", UID: "uid-3"}}
		case strings.Contains(call, "/nodes/"):
			return http.StatusNotFound, nil
		}
		return 0, nil
	}
	sweep := func() {
		if err := s.sweep(context.Background()); err != nil {
			t.Error(err)
		}
	}
	sweep()
	clock = clock.Add(nodeGoneAfter - time.Second)
	sweep()
	a.saw(t, "not gone for long")
	clock = clock.Add(time.Second)
	sweep()
	slices.Sort(a.calls)
	gone := "DELETE /apis/ipam.leasehold.dev/v1alpha1/namespaces/db/ipreservations/gone " +
		`{"kind":"DeleteOptions","apiVersion":"ipam.leasehold.dev/v1alpha1","preconditions":{"uid":"u-gone"}}`
	a.saw(t, "gone", gone, "GET /api/v1/nodes/node2", "GET /api/v1/nodes/node3")

	s.cluster.add(t, reservation("stays", "node2", "uid-2"))
	answer := a.answer
	a.answer = func(call string, r *http.Request) (int, any) {
		if strings.HasSuffix(call, "/stays") {
			return http.StatusForbidden, nil
		}
		return answer(call, r)
	}
	if err := s.sweep(context.Background()); err == nil || !strings.Contains(err.Error(), "deleting db/stays") {
		t.Errorf("a deletion that was refused: %v", err)
	}
	if !slices.Contains(a.calls, gone) {
		t.Errorf("it kept others from being deleted: %v", a.calls)
	}

	for _, r := range s.cluster.reservations.List() {
		if err := s.cluster.reservations.Delete(r); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	if len(s.missing) > 0 {
		t.Errorf("without reservations it remembers %v", s.missing)
	}
}

// nominates is a nominator, and one pod of its own whose gate was made just now.
func nominates(t *testing.T, change ...func(*podView)) (*nominator, *api, *[]string) {
	a := newAPI(t)
	clock, reported := noon, &[]string{}
	n := &nominator{gates: newGateLimiter(func() time.Time { return clock }), client: a.client, live: a.client,
		redial: func() {}, collectors: meter(t),
		report: words(reported), log: logr.Discard(), progress: map[types.UID]podProgress{},
		retries: make(chan struct{}, retries),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]()),
		cluster: clusterOf(t, nil, &clock,
			named("db-0", "u1", append([]func(*podView){func(p *podView) { p.Gated, p.Gates = true, 1 }},
				change...)...))}
	if !n.admit(context.Background(), "db", "db-0") {
		t.Fatal("no gate is made")
	}
	n.gates.Seen(n.cluster.pod("db/db-0"))
	return n, a, reported
}

func TestNominate(t *testing.T) {
	n, a, reported := nominates(t)
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil {
		t.Fatal(err)
	}
	a.saw(t, "nominated, then lifted",
		`PATCH `+pod0+`/status {"metadata":{"resourceVersion":"7","uid":"u1"},"status":{"nominatedNodeName":"node1"}}`,
		`PATCH `+pod0+` `+gateOff)
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil {
		t.Fatal(err)
	}
	a.saw(t, "done, and the informer is late")
	if len(*reported) > 0 {
		t.Errorf("reported %q", *reported)
	}
}

// Somebody has removed the annotation with the node.
func TestGateOfAPodWithoutANode(t *testing.T) {
	n, a, reported := nominates(t, func(p *podView) { p.Pinned = "" })
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil {
		t.Fatal(err)
	}
	a.saw(t, "lifted", `PATCH `+pod0+` `+gateOff)
	if len(*reported) > 0 {
		t.Errorf("reported %q", *reported)
	}
}

func TestNominationThatIsNotAnswered(t *testing.T) {
	n, a, reported := nominates(t)
	n.progress["u1"] = podProgress{lastGate: noon.Add(10*time.Millisecond - gateTimeout)}
	a.answer = func(call string, r *http.Request) (int, any) {
		if strings.HasSuffix(call, "/status") {
			<-r.Context().Done() // for as long as the caller waits
		}
		return 0, nil
	}
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil {
		t.Fatal(err)
	}
	if !n.progress["u1"].lifted || len(*reported) != 1 {
		t.Errorf("the gate is there: %+v, %q", n.progress["u1"], *reported)
	}
	if n.admit(context.Background(), "db", "db-1") || !n.admit(context.Background(), "other", "db-1") {
		t.Error("it stops gates in its namespace for a while")
	}
}

// TestNominationThatWasWritten has a nomination whose answer comes too late, or that the other
// replica writes.
func TestNominationThatWasWritten(t *testing.T) {
	n, a, reported := nominates(t)
	n.progress["u1"] = podProgress{lastGate: noon.Add(10*time.Millisecond - gateTimeout)}
	a.answer = func(call string, r *http.Request) (int, any) {
		if strings.HasSuffix(call, "/status") {
			<-r.Context().Done() // for as long as the caller waits
			return 0, nil
		}
		p := pending("u1", "db-0")
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		p.Status.NominatedNodeName = "node1"
		return 0, &p
	}
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil || len(*reported) > 0 {
		t.Errorf("%v; it is nominated, and reported is %q", err, *reported)
	}
}

func TestGateThatIsLiftedLate(t *testing.T) {
	n, a, _ := nominates(t)
	clock := noon
	n.cluster.now = func() time.Time { return clock }
	n.gates.now = n.cluster.now
	a.answer = func(call string, _ *http.Request) (int, any) {
		if strings.HasSuffix(call, pod0) {
			clock = noon.Add(3 * time.Second)
		}
		return 0, nil
	}
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil || !n.progress["u1"].lifted {
		t.Fatalf("%v, %+v", err, n.progress["u1"])
	}
	if n.admit(context.Background(), "db", "db-1") || !n.admit(context.Background(), "other", "db-1") {
		t.Error("it stops gates in its namespace for a while")
	}
}

func TestRefusedNominationLiftsTheGate(t *testing.T) {
	n, a, _ := nominates(t)
	a.answer = func(call string, _ *http.Request) (int, any) {
		if strings.HasSuffix(call, "/status") {
			return http.StatusForbidden, nil
		}
		return 0, nil
	}
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil || !n.progress["u1"].lifted {
		t.Errorf("%v, %+v", err, n.progress["u1"])
	}
}

func TestRefused(t *testing.T) {
	if refused(errors.New("no connection")) {
		t.Error("an API server that did not answer has refused")
	}
	for code, want := range map[int32]bool{
		http.StatusBadRequest: true, http.StatusForbidden: true, http.StatusNotFound: true, 499: true,
		http.StatusUnauthorized: false, http.StatusRequestTimeout: false, http.StatusTooManyRequests: false,
		http.StatusOK: false, http.StatusInternalServerError: false, http.StatusServiceUnavailable: false,
	} {
		err := fmt.Errorf("wrapped: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: code}})
		if got := refused(err); got != want {
			t.Errorf("%d: %t", code, got)
		}
	}
}

// A pod that no watch has shown was gated when it was admitted, or later.
func TestObserveSince(t *testing.T) {
	n, _, _ := nominates(t)
	p := n.cluster.pod("db/db-0")
	for _, admitted := range []time.Duration{-time.Second, time.Second} {
		n.observeSince(p, noon.Add(admitted))
		if got, want := n.progress["u1"].lastGate, noon.Add(-time.Second); !got.Equal(want) {
			t.Errorf("admitted at %s: gated since %s, want %s", noon.Add(admitted), got, want)
		}
	}
}

func TestGateThatCannotBeLifted(t *testing.T) {
	for code, fails := range map[int]bool{
		http.StatusForbidden:           true,
		http.StatusBadRequest:          true,
		http.StatusTooManyRequests:     true,
		http.StatusInternalServerError: true, // also somebody's webhook that does not answer
		http.StatusUnauthorized:        true,
		http.StatusNotFound:            false,
		http.StatusConflict:            false,
	} {
		n, a, reported := nominates(t)
		a.answer = func(call string, _ *http.Request) (int, any) {
			if strings.HasSuffix(call, pod0) {
				return code, nil
			}
			return 0, nil
		}
		for i := range 3 {
			n.progress["u1"] = podProgress{lastGate: noon.Add(time.Duration(i) * -gateTimeout),
				failed:   n.progress["u1"].failed,
				reported: n.progress["u1"].reported}
			ctx := deadline(t, callTimeout) // a client waits before it repeats a 429
			result, err := n.Reconcile(ctx, request("db-0"))
			if again := retryAfter(time.Duration(i)*gateTimeout, maxProbePause); err != nil || fails &&
				result.RequeueAfter != again {
				t.Errorf("%d, time %d: %+v, want %v; %v", code, i+1, result, again, err)
			}
			if stops, _ := n.gates.admit("db/db-1"); stops == fails {
				t.Errorf("%d, time %d: a gate is made: %t", code, i+1, stops)
			}
			n.gates.Cancel("db/db-1")
			if want := fails && i > 0; len(*reported) > 1 || len(*reported) == 1 != want {
				t.Errorf("%d, time %d: reported %q", code, i+1, *reported)
			}
		}
	}
}

// TestRetryAfter follows a gate that is refused at once each time.
func TestRetryAfter(t *testing.T) {
	var age time.Duration
	tries, atEnd := 0, false
	for ; age < time.Minute; age += retryAfter(age, maxRetryPause) {
		tries++
		atEnd = atEnd || age == gateTimeout
		if again := retryAfter(age, maxRetryPause); again <= 0 || again > max(age/2, 20*time.Millisecond) ||
			again > maxRetryPause {
			t.Errorf("%v old: again after %v", age, again)
		}
	}
	if again := retryAfter(time.Hour, maxProbePause); again != maxProbePause {
		t.Errorf("the one that is tried often, after %v", again)
	}
	if !atEnd || tries > 40 {
		t.Errorf("tried when its life ended: %t; %d times in a minute", atEnd, tries)
	}
}

func TestPodsThatFailLeaveWorkers(t *testing.T) {
	n, a, _ := nominates(t)
	for range retries {
		n.retries <- struct{}{}
	}
	n.progress["u1"] = podProgress{lastGate: noon, failed: true}
	if result, err := n.Reconcile(context.Background(), request("db-0")); err != nil ||
		result.RequeueAfter != recheckAfter {
		t.Errorf("%+v, %v", result, err)
	}
	a.saw(t, "it waits for one of the workers that try again")
	n.progress["u1"] = podProgress{lastGate: noon}
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil || !n.progress["u1"].lifted {
		t.Errorf("a pod that has not failed waits, too: %v", err)
	}
	<-n.retries
	n.progress["u1"] = podProgress{lastGate: noon.Add(-takeOverAfter), failed: true}
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil || !n.progress["u1"].lifted ||
		len(n.retries) != retries-1 {
		t.Errorf("one is free: %v, %d", err, len(n.retries))
	}
}

func TestWithdraw(t *testing.T) {
	unschedulable := func(p *podView) {
		p.Gated, p.Gates, p.Nominated, p.NominatedByUs = false, 0, "node1", true
		p.NotScheduled, p.Unschedulable, p.UnschedulableWhy = "Unschedulable", true, "no room"
	}
	n, a, reported := nominates(t, unschedulable, func(p *podView) { p.NeverPreempts = true })
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil {
		t.Fatal(err)
	}
	withdrawn := `PATCH ` + pod0 +
		`/status {"metadata":{"resourceVersion":"7","uid":"u1"},"status":{"nominatedNodeName":null}}`
	a.saw(t, "withdrawn, if nobody has nominated it since", withdrawn)
	if want := []string{"db-0 PinWithdrawn: the nomination of node1 is withdrawn: no room"}; !slices.Equal(*reported,
		want) {
		t.Errorf("reported %q, want %q", *reported, want)
	}

	for code, failed := range map[int]bool{http.StatusForbidden: true, 500: true, http.StatusNotFound: false} {
		n, a, reported = nominates(t, unschedulable, func(p *podView) { p.NeverPreempts = true })
		a.answer = func(string, *http.Request) (int, any) { return code, nil }
		if _, err := n.Reconcile(t.Context(), request("db-0")); (err != nil) != failed || len(*reported) > 0 {
			t.Errorf("%d: %v, reported %q", code, err, *reported)
		}
	}

	n, a, reported = nominates(t, unschedulable)
	n.progress["u1"] = podProgress{nominated: noon, tried: noon.Add(-preemptionTime)}
	victim := pending("u9", "victim")
	a.answer = func(_ string, r *http.Request) (int, any) {
		if r.Method != http.MethodGet {
			return 0, nil
		}
		if selector := r.URL.Query().Get("fieldSelector"); selector != "spec.nodeName=node1" {
			t.Errorf("it lists %q", selector)
		}
		return 0, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
			Items: []corev1.Pod{victim}}
	}
	victim.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonPreemptionByScheduler}}
	if result, err := n.Reconcile(context.Background(), request("db-0")); err != nil ||
		result.RequeueAfter != preemptionRecheck {
		t.Errorf("%+v, %v", result, err)
	}
	a.saw(t, "the scheduler preempts a pod there", "GET /api/v1/pods")
	victim.Status.Conditions = nil
	if _, err := n.Reconcile(context.Background(), request("db-0")); err != nil {
		t.Fatal(err)
	}
	a.saw(t, "the scheduler preempts nobody there", "GET /api/v1/pods", withdrawn)
	if len(*reported) != 1 {
		t.Errorf("reported %q", *reported)
	}

	n, a, reported = nominates(t, unschedulable)
	n.progress["u1"] = podProgress{nominated: noon, tried: noon.Add(-preemptionTime)}
	a.answer = func(string, *http.Request) (int, any) { return http.StatusForbidden, nil }
	if _, err := n.Reconcile(context.Background(), request("db-0")); err == nil || len(*reported) > 0 {
		t.Errorf("what cannot be listed counts as nothing: %v, %q", err, *reported)
	}
	a.saw(t, "nothing is written", "GET /api/v1/pods")
}

// TestProbe has gates that cannot be lifted hold all places, and another namespace's pod, which
// gets none.
func TestProbe(t *testing.T) {
	n, a, _ := nominates(t, func(p *podView) { p.Gated, p.Gates = false, 0 })
	n.gates.Cancel("db/db-0")
	for i := range maxGates {
		n.gates.Failed(gatedPod(fmt.Sprintf("bad%d/pod", i)))
	}
	dry := false
	code := http.StatusForbidden
	a.answer = func(_ string, r *http.Request) (int, any) {
		dry = r.URL.Query().Get("dryRun") == metav1.DryRunAll
		return code, nil
	}
	for _, code = range []int{http.StatusForbidden, 0} {
		if n.admit(t.Context(), "db", "db-0") {
			t.Fatal("a gate is made although none can be lifted")
		}
		for _, calls := range [][]string{{`PATCH ` + pod0 + ` ` + gateOff}, nil} {
			if _, err := n.Reconcile(t.Context(), request("db-0")); err != nil {
				t.Error(err)
			}
			a.saw(t, "the API server is asked once", calls...)
			if calls != nil && !dry {
				t.Error("it is not a dry run")
			}
		}
		n.gates.probed = time.Time{}
	}
	if !n.admit(t.Context(), "db", "db-1") || n.admit(t.Context(), "other", "db-1") {
		t.Error("a gate is made where the API server said that it can be lifted, and nowhere else")
	}
	if n.gates.Failed(gatedPod("db/db-1")); n.admit(t.Context(), "db", "db-2") {
		t.Error("a gate is made where none can be lifted")
	}
	if n.admit(t.Context(), "other", "db-0"); n.gates.IsProbe(ungatedPod("other/db-0")) {
		t.Error("what was said about a probe did not hold, and the API server is asked again")
	}
}

// TestPodThatNoWatchShows has a pod of this replica that the API server alone shows.
func TestPodThatNoWatchShows(t *testing.T) {
	n, a, reported := nominates(t)
	clock := noon
	n.cluster.now = func() time.Time { return clock }
	n.gates.now = n.cluster.now
	if !n.admit(context.Background(), "db", "db-1") {
		t.Fatal("no gate is made")
	}
	step := func(story string, again time.Duration, calls ...string) {
		t.Helper()
		result, err := n.Reconcile(context.Background(), request("db-1"))
		if err != nil || result.RequeueAfter != again {
			t.Errorf("%s: again after %v, want %v; %v", story, result.RequeueAfter, again, err)
		}
		a.saw(t, story, calls...)
	}
	const get = "GET /api/v1/namespaces/db/pods/db-1"
	step("just admitted", 0)
	clock = noon.Add(unseenTimeout)
	a.answer = func(string, *http.Request) (int, any) { return http.StatusNotFound, nil }
	step("it is not there yet", unseenTimeout, get)
	clock = clock.Add(unseenTimeout)
	a.answer = func(string, *http.Request) (int, any) { return http.StatusBadGateway, nil }
	step("nobody knows", retryAfter(2*unseenTimeout, maxProbePause), get)
	if n.admit(context.Background(), "db", "db-2") {
		t.Error("a gate is made although nobody knows whether one can be lifted")
	}
	p := pending("u2", "db-1", "leasehold.dev/nominate")
	p.TypeMeta, p.ResourceVersion = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, "8"
	p.Annotations = map[string]string{"io.kubernetes.cri/reserved-ip-duration": "10",
		"leasehold.dev/pinned-node": "node1"}
	p.Labels = map[string]string{"leasehold.dev/retained": "true"}
	a.answer = func(string, *http.Request) (int, any) { return 0, &p }
	step("it is there", unseenTimeout, get,
		`PATCH /api/v1/namespaces/db/pods/db-1/status `+
			`{"metadata":{"resourceVersion":"8","uid":"u2"},"status":{"nominatedNodeName":"node1"}}`,
		`PATCH /api/v1/namespaces/db/pods/db-1 {"metadata":{"uid":"u2"},`+
			`"spec":{"schedulingGates":[{"$patch":"delete","name":"leasehold.dev/nominate"}]}}`)
	clock = clock.Add(unseenTimeout)
	step("still no watch shows it", 0)
	if n.admit(context.Background(), "other", "db-0") {
		t.Error("a gate is made although the watch shows nothing")
	}
	if _, found := n.progress["u2"]; found {
		t.Error("what was seen of the pod is never forgotten")
	}

	clock = clock.Add(time.Hour)
	n.gates.Cancel("db/db-0") // gates are made one at a time
	if !n.admit(context.Background(), "db", "db-1") {
		t.Fatal("no gate is made")
	}
	p.Labels = nil
	clock = clock.Add(unseenTimeout)
	if result, err := n.Reconcile(context.Background(), request("db-1")); err != nil || result.RequeueAfter != 0 ||
		len(a.calls) != 3 {
		t.Errorf("its label was removed: %+v, %v, %q", result, err, a.calls)
	}
	if !n.admit(context.Background(), "other", "db-0") {
		t.Error("removing a label stops all gates")
	}
	n.gates.Cancel("other/db-0")
	if len(*reported) > 0 {
		t.Errorf("reported %q", *reported)
	}
}

func TestGatesOpen(t *testing.T) {
	clock := noon
	c := clusterOf(t, nil, &clock, named("db-0", "u0", func(p *podView) { p.Gated, p.Gates = true, 1 }),
		named("db-1", "u1", func(p *podView) { p.Gated, p.Gates = true, 2 }),
		named("db-2", "u2", func(p *podView) { p.Gates = 1 }))
	if n := len(c.gatedPods()); n != 1 {
		t.Errorf("%d pods wait for us; one does", n)
	}
}

func TestMemory(t *testing.T) {
	clock := noon
	c := clusterOf(t, nil, &clock)
	ran := named("db-0", "u1", func(p *podView) {
		p.Node, p.Window, p.Started, p.Addresses = "node1", lease.Window(time.Hour), true, "10.0.0.7"
	})
	r := &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db"}, Pod: "db-0", Node: "node1", PodUID: "u1"}
	is := func(story, node string) {
		t.Helper()
		if on := c.home("db/db-0"); on != node {
			t.Errorf("%s: it is on %q, want %q", story, on, node)
		}
	}
	c.add(t, ran)
	is("it runs, and its successor is made already", "node1")
	_ = c.pods.Delete(ran)
	c.podDeleted(ran)
	is("it has ended", "node1")
	c.reservationDeleted(r)
	is("its reservation is deleted", "")

	c.instances = map[string]instance{}
	c.add(t, ran)
	c.reservationDeleted(r)
	clock = clock.Add(2 * maxMemory)
	c.expireInstances()
	_ = c.pods.Delete(ran)
	c.podDeleted(ran)
	is("its reservation was deleted while it ran", "")
	clock = clock.Add(2 * maxMemory)
	c.expireInstances()
	if len(c.instances) > 0 {
		t.Errorf("it remembers %v", c.instances)
	}
}

// TestInstanceExpires checks that an instance is forgotten after its time, but not while its own
// pod exists.
func TestInstanceExpires(t *testing.T) {
	for uid, want := range map[types.UID]int{"": 0, "u1": 1, "u2": 0} {
		clock := noon
		c := clusterOf(t, nil, &clock)
		c.reservationDeleted(&reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "r"}, Pod: "db-0",
			Node: "node1", PodUID: "u1"})
		if uid != "" {
			c.add(t, named("db-0", uid))
		}
		clock = clock.Add(maxMemory)
		if c.expireInstances(); len(c.instances) != 1 {
			t.Errorf("pod %q: forgotten too early", uid)
		}
		clock = clock.Add(time.Second)
		if c.expireInstances(); len(c.instances) != want {
			t.Errorf("pod %q: it remembers %v, want %d", uid, c.instances, want)
		}
	}
}

// TestForgedReservation publishes and deletes the reservations of a compromised node.
func TestForgedReservation(t *testing.T) {
	clock := noon
	at := func(name, node, uid string, minutes int) *reservation {
		return &reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name,
			CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(minutes) * time.Minute))}, Pod: "db-0", Node: node,
			PodUID: uid, Until: clock.Add(time.Hour + time.Duration(minutes)*time.Minute),
			Window: lease.Window(time.Hour)}
	}
	ran := named("db-0", "u1", func(p *podView) {
		p.Node, p.Window, p.Started, p.Addresses = "node1", lease.Window(time.Hour), true, "10.0.0.7"
		p.CreationTimestamp = metav1.NewTime(noon)
	})
	c := clusterOf(t, nil, &clock, ran)
	is := func(story, node string) {
		t.Helper()
		if on := c.home("db/db-0"); on != node {
			t.Errorf("%s: it is on %q, want %q", story, on, node)
		}
	}
	forged := at("forged", "node9", "u1", 5)
	c.reservationDeleted(forged) // while the pod runs
	_ = c.pods.Delete(ran)
	c.podDeleted(ran)
	is("another node's claim was deleted while it ran", "node1")
	c.add(t, forged)
	is("before its node has published it, another one claims it", "node1")
	_ = c.reservations.Delete(forged)
	c.reservationDeleted(forged)
	is("the other node's claim is deleted", "node1")

	honest := at("honest", "node1", "u1", 1)
	for _, uid := range []string{"u1", "u9"} {
		for _, minutes := range []int{-5, 5} {
			forged := at("forged", "node9", uid, minutes)
			c.add(t, honest)
			c.add(t, forged)
			is("both claim it", "node1")
			clock = clock.Add(maxMemory + time.Minute)
			c.expireInstances()
			is("both claim it after a while", "node1")
			_ = c.reservations.Delete(forged)
			c.reservationDeleted(forged)
			is("the other one's is deleted", "node1")
			clock = noon
		}
	}
	c = clusterOf(t, nil, &clock, ran)
	_ = c.pods.Delete(ran)
	c.podDeleted(ran)
	c.reservationDeleted(honest)
	c.reservationDeleted(forged)
	is("its address was released, and another node's claim deleted", "")
	for _, minutes := range []int{-5, 5} {
		forged := at("forged", "node9", "u9", minutes)
		c.add(t, forged)
		is("its address was released, and another node claims it", "")
		_ = c.reservations.Delete(forged)
		c.reservationDeleted(forged)
	}
}

func pending(uid, name string, gates ...string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(uid)}}
	for _, g := range gates {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: g})
	}
	return p
}

func TestLiftGates(t *testing.T) {
	const ours = "leasehold.dev/nominate"
	list := func(all []corev1.Pod, next string) any {
		return &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
			ListMeta: metav1.ListMeta{Continue: next}, Items: all}
	}
	// end is called in the third round, in the middle of a request.
	serve := func(a *api, end func()) {
		gone, refused := map[string]bool{}, 0
		a.answer = func(call string, r *http.Request) (int, any) {
			name := call[strings.LastIndex(call, "/")+1:]
			switch {
			case r.Method == http.MethodPatch && name == "refuses":
				if refused++; refused == 3 {
					end()
				}
				return http.StatusForbidden, nil
			case r.Method == http.MethodPatch:
				gone[name] = true
				return 0, nil
			}
			selector := strings.Split(r.URL.Query().Get("fieldSelector"), ",")
			if slices.Sort(selector); !slices.Equal(selector, []string{"spec.nodeName=", "status.phase=Pending"}) {
				return http.StatusBadRequest, nil
			}
			var page []corev1.Pod
			for _, p := range [][]corev1.Pod{
				{pending("u1", "refuses", ours), pending("u2", "alone", ours)},
				{pending("u3", "held", "a.b/c", ours), pending("u4", "others", "a.b/c"), pending("u5", "free")},
			}[len(r.URL.Query().Get("continue"))] {
				if !gone[p.Name] {
					page = append(page, p)
				}
			}
			return 0, list(page, strings.Repeat("x", 1-len(r.URL.Query().Get("continue"))))
		}
	}
	for _, tt := range []struct {
		story  string
		all    bool
		lifted int
		held   bool
	}{{"a manager ends", false, 1, false}, {"leasehold ends", true, 2, true}} {
		a := newAPI(t)
		ctx, cancel := context.WithCancel(context.Background())
		serve(a, cancel)
		n, err := LiftGates(ctx, a.client, 0, tt.all)
		if n != tt.lifted || err == nil || !strings.Contains(err.Error(), "lifting the gate of db/refuses") {
			t.Errorf("%s: lifted %d, want %d; %v", tt.story, n, tt.lifted, err)
		}
		patched := func(name string) bool {
			return slices.ContainsFunc(a.calls,
				func(c string) bool { return strings.HasPrefix(c, "PATCH /api/v1/namespaces/db/pods/"+name+" ") })
		}
		if !patched("alone") || patched("held") != tt.held || patched("others") || patched("free") {
			t.Errorf("%s: %q", tt.story, a.calls)
		}
	}

	a := newAPI(t)
	serve(a, func() {})
	l := newLifter(a.client, a.client, time.Minute, false)
	for _, at := range []time.Duration{0, 59 * time.Second} {
		if n, err := l.round(context.Background(), noon.Add(at)); n != 2 || err != nil || l.lifted > 0 {
			t.Errorf("after %v: %d wait, %d lifted, %v", at, n, l.lifted, err)
		}
	}
	if _, err := l.round(context.Background(), noon.Add(time.Minute)); err == nil || l.lifted != 1 {
		t.Errorf("after a minute: %d lifted, %v", l.lifted, err)
	}
}

func TestLiftGatesThatAreNotAnswered(t *testing.T) {
	a := newAPI(t)
	a.answer = func(call string, r *http.Request) (int, any) {
		switch {
		case strings.HasSuffix(call, "/hangs"):
			<-r.Context().Done() // for as long as the caller waits
		case r.Method == http.MethodGet:
			return 0, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{
				pending("u1", "hangs", "leasehold.dev/nominate"), pending("u2", "answers", "leasehold.dev/nominate")}}
		}
		return 0, nil
	}
	l := newLifter(a.client, a.client, 0, false)
	l.limit = time.Second
	if _, err := l.round(deadline(t, time.Minute), noon); err == nil || l.lifted != 1 {
		t.Errorf("%d lifted, %v", l.lifted, err)
	}
}

// The leader lists the pods that wait once a minute, from the API server's watch cache. What lifts
// the last gates reads from etcd.
func TestListsOfPodsThatWait(t *testing.T) {
	for cached, want := range map[bool]string{true: "0 ", false: " 500"} {
		a := newAPI(t)
		var got []string
		a.answer = func(_ string, r *http.Request) (int, any) {
			got = append(got, r.URL.Query().Get("resourceVersion")+" "+r.URL.Query().Get("limit"))
			return 0, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		}
		l := newLifter(a.client, a.client, 0, false)
		l.cached = cached
		if _, err := l.round(t.Context(), noon); err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("cached %v: version and limit %q, want %q; %v", cached, got, want, err)
		}
	}
}
