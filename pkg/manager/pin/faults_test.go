package pin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/kube/once"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// The webhook passes the gate limiter the namespace and the name of the pod, counts its decisions,
// and pins without a gate if none may be made.
func TestWebhookAsksForAGate(t *testing.T) {
	clock := noon
	for _, allowed := range []bool{true, false} {
		var asked []string
		w := &webhook{Options: Options{Mode: policy.PinNominate, Fallback: policy.PinPrefer,
			Schedulers: []string{"default-scheduler"}},
			collectors: meter(t), log: logr.Discard(),
			cluster: clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock,
				&reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "r1", UID: "ru"}, Pod: "db-0",
					Node:    "node1",
					NodeUID: string(node("node1").UID), Window: lease.Window(time.Hour), Until: noon.Add(time.Hour),
					Addresses: "10.0.0.2"}),
			gate: func(_ context.Context, namespace, name string) bool {
				asked = append(asked, namespace+"/"+name)
				return allowed
			}}
		object, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0",
			Annotations: map[string]string{policy.Annotation: "60"}},
			Spec: corev1.PodSpec{SchedulerName: "default-scheduler"}})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(dryRun bool) string {
			r := w.handler().Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Namespace: "db", Object: runtime.RawExtension{Raw: object}, DryRun: &dryRun}})
			return patched(t, object, r)
		}
		got := ask(false)
		if !slices.Equal(asked, []string{"db/db-0"}) || strings.Contains(got, wellknown.GateNominate) != allowed {
			t.Errorf("a gate was asked for of %q (allowed: %v):\n%s", asked, allowed, got)
		}
		mode := policy.PinNominate
		if !allowed {
			mode = policy.PinPrefer
		}
		n := 0.0
		for _, reason := range []pinReason{reserved, remembered} {
			n += testutil.ToFloat64(w.collectors.decisions.WithLabelValues(string(mode), string(reason)))
		}
		if c := testutil.CollectAndCount(w.collectors.decisions); c != 2 && c != 3 {
			t.Errorf("%d counters of decisions", c)
		}
		if allowed && n != 1 {
			t.Errorf("%v decisions for %s:\n%s", n, mode, got)
		}
		if ask(true); len(asked) != 1 {
			t.Errorf("a dry run asks for a gate: %q", asked)
		}
	}
}

func TestHeldSince(t *testing.T) {
	for name, c := range map[string]struct {
		r    reservation
		want time.Time
	}{
		"a hold":           {reservation{Until: noon, Window: lease.Window(time.Hour)}, noon.Add(-time.Hour)},
		"bound":            {reservation{Bound: true, Until: noon, Window: lease.Window(time.Hour)}, time.Time{}},
		"without an end":   {reservation{Window: lease.Window(time.Hour)}, time.Time{}},
		"without a window": {reservation{Until: noon}, time.Time{}},
		"a short window":   {reservation{Until: noon, Window: 1}, noon.Add(-1)},
	} {
		if got := heldSince(&c.r); !got.Equal(c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestNominatedByUs(t *testing.T) {
	entry := func(change func(*metav1.ManagedFieldsEntry)) []metav1.ManagedFieldsEntry {
		e := metav1.ManagedFieldsEntry{Manager: wellknown.ManagerName, Subresource: "status",
			FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:nominatedNodeName":{}}}`)}
		change(&e)
		return []metav1.ManagedFieldsEntry{{Manager: "kubelet"}, e}
	}
	for name, c := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		want   bool
	}{
		"ours":              {entry(func(*metav1.ManagedFieldsEntry) {}), true},
		"of the scheduler":  {entry(func(e *metav1.ManagedFieldsEntry) { e.Manager = "kube-scheduler" }), false},
		"not in the status": {entry(func(e *metav1.ManagedFieldsEntry) { e.Subresource = "" }), false},
		"without fields":    {entry(func(e *metav1.ManagedFieldsEntry) { e.FieldsV1 = nil }), false},
		"of another field": {
			entry(func(e *metav1.ManagedFieldsEntry) { e.FieldsV1.SetRawString(`{"f:spec":{}}`) }), false},
		"without any manager": {nil, false},
	} {
		if got := nominatedByUs(c.fields); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestTrim(t *testing.T) {
	other := &corev1.Pod{}
	for name, trim := range map[string]func(any) (any, error){"node": trimNode, "namespace": trimNamespace} {
		if got, err := trim(other); got != any(other) || err != nil {
			t.Errorf("%s: another object became %v, %v", name, got, err)
		}
	}
	ns := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "db", UID: "u",
		Labels:      map[string]string{"a": "b", wellknown.AnnotationPin: "none"},
		Annotations: map[string]string{"c": "d"}}}
	got, err := trimNamespace(ns)
	trimmed, ok := got.(*metav1.PartialObjectMetadata)
	if err != nil || !ok || len(trimmed.Labels) != 1 || trimmed.Labels[wellknown.AnnotationPin] != "none" ||
		trimmed.Annotations != nil || trimmed.Name != "db" || trimmed.UID != "u" {
		t.Errorf("%+v, %v", got, err)
	}
}

// The parts of the limiter that only matter after a failure.
func TestLimiterAfterFailures(t *testing.T) {
	p := pause{}
	if !p.begin(noon) || p.begin(noon.Add(firstPause-1)) || p.length != firstPause {
		t.Errorf("a pause begins while one is on: %+v", p)
	}
	if !p.begin(noon.Add(firstPause)) || p.length != 2*firstPause {
		t.Errorf("the second pause: %+v", p)
	}

	l, _, admitted := limited()
	first, second := admitted("db/0"), admitted("db/0")
	if !first || !second || len(l.gates) != 1 || l.namespaces["db"].gates != 1 {
		t.Errorf("a second attempt to create a pod: %v, %+v", l.gates, l.namespaces["db"])
	}
	l.Seen(gatedPod("db/0"))
	if !admitted("db/0") || l.namespaces["db"].gates != 1 {
		t.Error("a pod that exists and has its gate is not admitted")
	}
	if l.gates["db/0"].uid == "" || !l.gates["db/0"].counts {
		t.Errorf("its gate alone counts: %+v", l.gates["db/0"])
	}
	l.Failed(gatedPod("db/0"))
	if admitted("db/0") {
		t.Error("a pod whose gate cannot be lifted is admitted")
	}
	l.LiftedUnseen(gatedPod("db/1"))
	l.Failed(gatedPod("db/1"))
	if !l.gates["db/1"].lifted.IsZero() {
		t.Error("a gate that cannot be lifted counts as lifted")
	}

	l, clock, _ := limited()
	*clock = clock.Add(probeInterval)
	l.probed = noon
	l.chooseProbe("db/0", *clock)
	if l.probe != "db/0" || !l.probed.Equal(*clock) {
		t.Errorf("the probe is %q at the end of the interval", l.probe)
	}
	l.chooseProbe("db/1", clock.Add(probeInterval-1))
	if l.probe != "db/0" {
		t.Errorf("the probe is %q before the end of the interval", l.probe)
	}
	l.unreliable = true
	l.chooseProbe("db/2", clock.Add(probeInterval))
	if l.probe != "db/0" {
		t.Error("a probe is chosen although probes prove nothing")
	}
	l.Failed(gatedPod("db/3"))
	if !l.unreliable {
		t.Error("probes prove something after another failure")
	}

	l, clock, _ = limited()
	for _, namespace := range []string{"a", "b"} {
		l.Late(gatedPod(namespace + "/0"))
	}
	if !l.late.isOn(*clock) || len(l.lateIn) != 0 {
		t.Errorf("late in two namespaces: %+v, %v", l.late, l.lateIn)
	}

	// A namespace in which alone gates fail does so until the last of them is lifted.
	l, _, _ = limited()
	l.Failed(gatedPod("db/0"))
	l.Failed(gatedPod("db/1"))
	l.Lifted(gatedPod("other/0"), true)
	l.Cancel("db/0")
	if n := l.namespaces["db"]; !n.own || n.failing != 1 {
		t.Errorf("one gate still fails: %+v", n)
	}
	l.Cancel("db/1")
	if n := l.namespaces["db"]; n.own || n.failing != 0 || n.gates != 0 {
		t.Errorf("no gate fails any more: %+v", n)
	}
	idle := namespaceGates{pause: pause{until: noon}}
	if idle.isIdle(noon.Add(maxPause)) || !idle.isIdle(noon.Add(maxPause+1)) {
		t.Error("what is known of a namespace is forgotten too early or too late")
	}
	if _, _, reserved := l.count(); reserved != 0 {
		t.Errorf("%d gates are reserved for nobody", reserved)
	}
	// A pause begins once for each pod that no watch has shown.
	l, clock, _ = limited()
	p1 := gatedPod("db/1")
	if l.LiftedUnseen(p1) != unseenTimeout {
		t.Error("it is not checked whether a watch shows the pod")
	}
	*clock = clock.Add(unseenTimeout - 1)
	if l.Unwatched("db/1") {
		t.Error("a pause begins too early")
	}
	*clock = clock.Add(1)
	if !l.Unwatched("db/1") || l.Unwatched("db/1") || len(l.gates) > 0 || !l.watch.isOn(*clock) {
		t.Errorf("no pause, or the pod is remembered: %v, %+v", l.gates, l.watch)
	}
	// Only a pod that this replica admitted with a gate has to be read when the watch loses it.
	l, _, admitted = limited()
	admitted("db/0")
	l.Seen(gatedPod("db/0"))
	l.Failed(gatedPod("db/1")) // of another replica
	replaced := gatedPod("db/0")
	replaced.UID = "another"
	for name, c := range map[string]struct {
		p    *podView
		want bool
	}{
		"that is unknown": {gatedPod("db/9"), false}, "of that name": {replaced, false},
		"of another replica": {gatedPod("db/1"), false}, "of ours": {gatedPod("db/0"), true},
	} {
		if got := l.Gone(c.p); got != c.want {
			t.Errorf("a pod %s is gone: %v, want %v", name, got, c.want)
		}
	}
	// A gate ends to count once: with other gates on the pod, and when it is lifted after that.
	l, _, admitted = limited()
	admitted("db/0")
	more := gatedPod("db/0")
	more.Gates = 2
	l.Seen(gatedPod("db/0"))
	l.Seen(more)
	l.Lifted(more, true)
	if n := l.namespaces["db"]; n.gates != 0 {
		t.Errorf("after its end %d gates count", n.gates)
	}
	// A gate is reserved for a namespace that waits and has none.
	admitted("db/1")
	l.wait("db/2", 1)
	l.wait("other/0", 1)
	if _, _, reserved := l.count(); reserved != 1 {
		t.Errorf("%d gates are reserved, want that of one namespace", reserved)
	}
	// A namespace whose gates never failed is not one in which alone gates fail.
	l, _, admitted = limited()
	admitted("db/0")
	l.Lifted(gatedPod("other/0"), true)
	l.Failed(gatedPod("db/0"))
	if failing, gates, _ := l.count(); failing != 1 || gates != 1 {
		t.Errorf("after the first failure: %d of %d gates fail", failing, gates)
	}
	l.Lifted(gatedPod("other/0"), true)
	if failing, gates, _ := l.count(); failing != 0 || gates != 0 {
		t.Errorf("after a gate was lifted elsewhere: %d of %d gates fail", failing, gates)
	}
	// While failing gates use up the limit, one gate of a proven namespace is tried at a time.
	l, _, admitted = limited()
	for i := range maxGates {
		l.Failed(gatedPod(fmt.Sprintf("ns%d/0", i)))
	}
	if admitted("db/0") {
		t.Error("a gate is made in a namespace that is not proven")
	}
	l.Probed(ungatedPod("db/0"))
	if !admitted("db/1") || admitted("db/2") {
		t.Error("not one gate at a time is tried in a proven namespace")
	}
	if _, freed := l.admit("db/2"); freed == nil {
		t.Error("the next one does not wait for the one that is tried")
	}
	// When the last admission of a namespace ends, those that wait try again.
	l, _, _ = limited()
	freed := l.freed
	l.wait("db/2", 1)
	l.wait("db/2", -1)
	select {
	case <-freed:
	default:
		t.Error("the reserved gate is not given to others")
	}
}

// A node is gone only if the API server says so.
func TestSweeperReadsTheNode(t *testing.T) {
	clock := noon
	a := newAPI(t)
	s := &sweeper{limit: callTimeout, live: a.client, client: a.client, log: logr.Discard(),
		missing: map[types.UID]time.Time{"uid-2": noon, "uid-1": noon},
		cluster: clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock)}
	s.cluster.reader.(nodesOnly).nodes["node1"].UID = "uid-1"
	if gone, err := s.gone(t.Context(), "node1", "uid-1"); gone || err != nil {
		t.Errorf("a node that is there is gone: %v, %v", gone, err)
	}
	if _, remembered := s.missing["uid-1"]; remembered {
		t.Error("a node that is there is remembered as missing")
	}
	clock = noon.Add(nodeGoneAfter)
	for code, want := range map[int]bool{http.StatusNotFound: true, http.StatusForbidden: false, 500: false} {
		a.answer = func(string, *http.Request) (int, any) { return code, nil }
		gone, err := s.gone(t.Context(), "node2", "uid-2")
		if gone != want || (err == nil) != want {
			t.Errorf("%d: gone: %v, %v", code, gone, err)
		}
	}
	for uid, want := range map[types.UID]bool{"uid-2": false, "uid-9": true} {
		a.answer = func(string, *http.Request) (int, any) {
			return 0, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{Name: "node2", UID: uid}}
		}
		if gone, err := s.gone(t.Context(), "node2", "uid-2"); gone != want || err != nil {
			t.Errorf("the API server has a node2 with the UID %s: gone: %v, %v", uid, gone, err)
		}
	}
}

// A report has its reason and its text.
func TestReportsHaveTheirReason(t *testing.T) {
	clock := noon
	n, a, reported := nominates(t)
	n.progress["u1"] = podProgress{lastGate: noon.Add(10*time.Millisecond - gateTimeout)}
	a.answer = func(call string, r *http.Request) (int, any) {
		if strings.HasSuffix(call, "/status") {
			<-r.Context().Done()
		}
		return 0, nil
	}
	redials := 0
	n.redial = func() { redials++ }
	if _, err := n.Reconcile(t.Context(), request("db-0")); err != nil {
		t.Fatal(err)
	}
	want := []string{"db-0 " + reasonNotPossible + ": not pinned: node1 could not be nominated in time"}
	if !slices.Equal(*reported, want) || redials == 0 {
		t.Errorf("reported %q, want %q; %d redials", *reported, want, redials)
	}

	*reported = nil
	p := named("db-1", "u9", func(p *podView) { p.Gated, p.Gates = true, 1 })
	n.progress["u9"] = podProgress{lastGate: noon.Add(-gateTimeout)}
	n.failed(p, errors.New("no"))
	want = []string{"db-1 " + reasonNotPossible + ": it waits because its gate cannot be lifted: no"}
	if !slices.Equal(*reported, want) {
		t.Errorf("reported %q, want %q", *reported, want)
	}

	*reported = nil
	e := &explainer{report: words(reported), reported: once.Set{Life: time.Hour},
		cluster: clusterOf(t, nil, &clock,
			named("db-2", "u2", func(p *podView) { p.Reason = "NodeGone: there is none" }))}
	if _, err := e.Reconcile(t.Context(), request("db-2")); err != nil {
		t.Fatal(err)
	}
	if want = []string{"db-2 " + reasonNotPossible + ": not pinned: there is none"}; !slices.Equal(*reported, want) {
		t.Errorf("reported %q, want %q", *reported, want)
	}
}

// An error of the API server other than a rejection makes a nomination, and then the gate, due
// again.
func TestNominationThatConflicts(t *testing.T) {
	for code, want := range map[int]bool{http.StatusConflict: true, 500: true, http.StatusForbidden: false} {
		n, a, _ := nominates(t)
		a.answer = func(call string, _ *http.Request) (int, any) {
			if strings.HasSuffix(call, "/status") {
				return code, nil
			}
			return 0, nil
		}
		p := n.cluster.pod("db/db-0")
		if _, _, err := n.nominateWithin(t.Context(), p, time.Minute); (err != nil) != want {
			t.Errorf("%d: %v", code, err)
		}
		_, err := n.lift(t.Context(), p, time.Minute, false)
		if (err != nil) != want || want && n.progress["u1"].lifted {
			t.Errorf("%d: %v, %+v", code, err, n.progress["u1"])
		}
	}
	n, a, _ := nominates(t)
	a.answer = func(string, *http.Request) (int, any) { return http.StatusForbidden, nil }
	if _, err := n.lift(t.Context(), n.cluster.pod("db/db-0"), 0, false); !apierrors.IsForbidden(err) {
		t.Errorf("a gate that may not be lifted: %v", err)
	}
}

// Evictions are counted by their reason.
func TestEvictionsAreCounted(t *testing.T) {
	for code, want := range map[int]float64{0: 1, http.StatusNotFound: 1, http.StatusConflict: 0, 500: 0} {
		a := newAPI(t)
		a.answer = func(string, *http.Request) (int, any) { return code, nil }
		var reported []string
		v := &evictor{client: a.client, collectors: meter(t), report: words(&reported), log: logr.Discard()}
		err := v.evict(t.Context(), named("db-0", "u1"), nodeGone, "it is gone")
		if n := testutil.ToFloat64(v.collectors.evictions.WithLabelValues(string(nodeGone))); n != want ||
			(err != nil) != (code == 500) || float64(len(reported)) != want {
			t.Errorf("%d: %v evictions, %v, reported %q", code, n, err, reported)
		}
	}
}

// Only terms of one hostname and nothing else are of a PersistentPodState.
func TestIsHost(t *testing.T) {
	host := func() corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"h"}}}}
	}
	for name, c := range map[string]struct {
		change func(*corev1.NodeSelectorTerm)
		want   bool
	}{
		"the hostname": {func(*corev1.NodeSelectorTerm) {}, true},
		"and a field": {
			func(t *corev1.NodeSelectorTerm) { t.MatchFields = append(t.MatchFields, onNode("n")) }, false},
		"two of them": {func(t *corev1.NodeSelectorTerm) {
			t.MatchExpressions = append(t.MatchExpressions, t.MatchExpressions[0])
		}, false},
		"nothing": {func(t *corev1.NodeSelectorTerm) { t.MatchExpressions = nil }, false},
		"another hostname": {
			func(t *corev1.NodeSelectorTerm) { t.MatchExpressions[0].Values = []string{"x"} }, false},
		"two hostnames": {
			func(t *corev1.NodeSelectorTerm) { t.MatchExpressions[0].Values = []string{"h", "x"} }, false},
		"not the hostname": {
			func(t *corev1.NodeSelectorTerm) { t.MatchExpressions[0].Operator = corev1.NodeSelectorOpNotIn }, false},
		"another label": {func(t *corev1.NodeSelectorTerm) { t.MatchExpressions[0].Key = "zone" }, false},
	} {
		term := host()
		c.change(&term)
		if got := isHost(term, "h"); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, affinity := range []*corev1.Affinity{nil, {}, {NodeAffinity: &corev1.NodeAffinity{}}} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Affinity: affinity}}
		if requires(p, "n") {
			t.Errorf("%+v requires a node", affinity)
		}
	}
	for _, others := range []int{0, 1, 2} {
		p := &corev1.Pod{}
		for range others {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "other"})
		}
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: wellknown.GateNominate})
		strip(p)
		if len(p.Spec.SchedulingGates) != others || others == 0 && p.Spec.SchedulingGates != nil {
			t.Errorf("%d gates of others: %v are left", others, p.Spec.SchedulingGates)
		}
	}
	big := &corev1.Pod{}
	if large(big, maxGatedBytes) || !large(big, maxGatedBytes+1) {
		t.Error("the limit of a pod's size")
	}
}

// What a pod on no watch looks like decides what is done about it.
func TestFindReadsUnseenPods(t *testing.T) {
	answer := func(uid types.UID, gates ...string) func(string, *http.Request) (int, any) {
		return func(string, *http.Request) (int, any) {
			p := pending(string(uid), "db-0")
			p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
			p.Spec.SchedulingGates = nil
			for _, g := range gates {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: g})
			}
			return 0, &p
		}
	}
	for name, c := range map[string]struct {
		answer func(string, *http.Request) (int, any)
		uid    types.UID // of what is found
		again  bool
	}{
		"the pod of the watch": {answer("u1", wellknown.GateNominate), "u1", false},
		"another pod":          {answer("u2", wellknown.GateNominate), "u2", false},
		"without our gate":     {answer("u2"), "u1", false},
		"it does not exist":    {func(string, *http.Request) (int, any) { return http.StatusNotFound, nil }, "", true},
		"no answer":            {func(string, *http.Request) (int, any) { return 500, nil }, "", true},
	} {
		n, a, _ := nominates(t)
		redials := 0
		n.redial = func() { redials++ }
		n.gates.gates["db/db-0"].seen = false
		late := noon.Add(unseenTimeout + time.Second)
		n.gates.now, n.cluster.now = func() time.Time { return late }, func() time.Time { return late }
		a.answer = c.answer
		p, _, again := n.find(t.Context(), request("db-0"))
		if (p == nil) != (c.uid == "") || p != nil && p.UID != c.uid || (again > 0) != c.again ||
			(redials > 0) != (name == "no answer") ||
			name == "no answer" && again != 500*time.Millisecond { // at gateTimeout
			t.Errorf("%s: %+v, again after %s, %d redials", name, p, again, redials)
		}
	}
}

// deadlines is a client that only records how long its calls may take.
type deadlines struct {
	client.Reader
	left []time.Duration
}

func (d *deadlines) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	at, ok := ctx.Deadline()
	if !ok {
		return errors.New("no deadline")
	}
	d.left = append(d.left, time.Until(at).Round(100*time.Millisecond))
	return apierrors.NewInternalError(errors.New("no"))
}

// The first attempt to read a pod that no watch shows has a short time limit, others a long one.
func TestLimitsOfReadingUnseenPods(t *testing.T) {
	for age, want := range map[time.Duration]time.Duration{
		unseenTimeout: firstGetTimeout, unseenTimeout + firstGetTimeout - 1: firstGetTimeout,
		unseenTimeout + firstGetTimeout: callTimeout, time.Minute: callTimeout,
	} {
		n, _, _ := nominates(t)
		d := &deadlines{}
		n.live = d
		n.gates.gates["db/db-0"].seen = false
		n.cluster.now = func() time.Time { return noon.Add(age) }
		n.gates.now = n.cluster.now
		if n.find(t.Context(), request("db-0")); !slices.Equal(d.left, []time.Duration{want}) {
			t.Errorf("%s after the admission: time limits %v, want %v", age, d.left, want)
		}
	}
}

// A gate that is lifted without an attempt to nominate counts as such, and is reported.
func TestGateThatIsLiftedWithoutANomination(t *testing.T) {
	n, a, reported := nominates(t)
	if _, err := n.lift(t.Context(), n.cluster.pod("db/db-0"), 0, false); err != nil {
		t.Fatal(err)
	}
	a.saw(t, "lifted", "PATCH "+pod0+" "+gateOff)
	count := func(nominated string) float64 {
		return testutil.ToFloat64(n.collectors.lifted.WithLabelValues(nominated))
	}
	want := []string{"db-0 " + reasonNotPossible + ": not pinned: node1 could not be nominated in time"}
	if count("true") != 0 || count("false") != 1 || !slices.Equal(*reported, want) {
		t.Errorf("%v nominated, %v not, reported %q", count("true"), count("false"), *reported)
	}
}

func TestModeIn(t *testing.T) {
	for annotation, want := range map[string]policy.PinMode{
		"Reserved: require node1": policy.PinRequire, "Remembered: prefer node1, where it ran": policy.PinPrefer,
		"Reserved: nominate": policy.PinNominate, "Reserved: maybe node1": policy.PinNone, "Reserved": policy.PinNone,
		"Reserved:require node1": policy.PinNone, "NodeGone: require node1": policy.PinNone, "": policy.PinNone,
	} {
		if got := modeIn(annotation); got != want {
			t.Errorf("%q: %q, want %q", annotation, got, want)
		}
	}
}

// choose returns all that is known of the node, not only its name.
func TestChooseReturnsTheWholeTarget(t *testing.T) {
	r := held("node1", "1", time.Minute)
	r.NodeUID, r.Addresses, r.Abandoned = "uid-1", "10.0.0.7", true
	want := pinTarget{Node: "node1", NodeUID: "uid-1", Addresses: "10.0.0.7", Abandoned: true}
	if got, found := choose([]*reservation{r}, instance{}, noon); got != want || !found {
		t.Errorf("of a reservation: %+v, want %+v", got, want)
	}
	last := instance{Node: "node1", Addresses: "10.0.0.7", Started: true, Ended: noon, Until: noon.Add(time.Minute)}
	want = pinTarget{Node: "node1", Addresses: "10.0.0.7", Remembered: true}
	if got, found := choose(nil, last, noon); got != want || !found {
		t.Errorf("of the last instance: %+v, want %+v", got, want)
	}
}

// Before the first lists only what the pod and the command line say is known.
func TestFactsBeforeTheFirstLists(t *testing.T) {
	w := blind(t)
	clock := noon
	w.cluster = clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock,
		&reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db"}, Pod: "db-0", Node: "node1", Bound: true})
	w.cluster.synced = []func() bool{func() bool { return false }}
	w.Options = Options{Mode: policy.PinNominate, Fallback: policy.PinPrefer, Schedulers: []string{"ours"}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "ours"}}
	pod.Annotations = map[string]string{wellknown.AnnotationPin: "require"}
	want := podFacts{Pod: pod, Mode: policy.PinRequire, Fallback: policy.PinPrefer, Honoured: true}
	if diff := cmp.Diff(want, w.facts(t.Context(), "db/db-0", "db", pod)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A pod counts as started once it has an address.
func TestStarted(t *testing.T) {
	for n, want := range map[int]bool{0: false, 1: true, 2: true} {
		p := &corev1.Pod{Status: corev1.PodStatus{PodIPs: make([]corev1.PodIP, n)}}
		if got := viewPod(p).Started; got != want {
			t.Errorf("%d addresses: started: %v", n, got)
		}
	}
}

// An evictor that does not know the cluster yet looks again.
func TestEvictorBeforeTheFirstLists(t *testing.T) {
	clock := noon
	v := &evictor{cluster: clusterOf(t, nil, &clock, named("db-0", "u1", func(p *podView) {
		p.Required, p.Controlled, p.Unschedulable = true, true, true
	})), waiting: map[types.NamespacedName]wait{}}
	v.cluster.synced = []func() bool{func() bool { return false }}
	result, err := v.Reconcile(t.Context(), request("db-0"))
	if result.RequeueAfter != markDelay || err != nil || v.waiting[request("db-0").NamespacedName].since != noon {
		t.Errorf("again after %s, %v; waits: %v", result.RequeueAfter, err, v.waiting)
	}
}

// LiftGates tries again as long as the pods cannot be listed, although it sees none that waits.
func TestLiftGatesThatCannotBeListed(t *testing.T) {
	a := newAPI(t)
	lists := 0
	a.answer = func(string, *http.Request) (int, any) {
		if lists++; lists < 3 {
			return 500, nil
		}
		return 0, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	}
	if n, err := LiftGates(deadline(t, time.Minute), a.client, 0, false); n != 0 || err != nil || lists != 3 {
		t.Errorf("%d lifted, %v after %d lists", n, err, lists)
	}
}

// A pod that has changed since it was read is looked at again soon, and no failure is recorded.
func TestConflictIsLookedAtAgain(t *testing.T) {
	for _, path := range []string{"/status", pod0} {
		n, a, _ := nominates(t)
		a.answer = func(call string, _ *http.Request) (int, any) {
			if strings.HasSuffix(call, path) {
				return http.StatusConflict, nil
			}
			return 0, nil
		}
		result, err := n.Reconcile(t.Context(), request("db-0"))
		if err != nil || result.RequeueAfter != recheckAfter || n.progress["u1"].failed || n.progress["u1"].lifted {
			t.Errorf("%s: again after %s, %v, %+v", path, result.RequeueAfter, err, n.progress["u1"])
		}
	}
}

// A gate that is lifted at gateTimeout is not late.
func TestGateThatIsLiftedAtTheLimit(t *testing.T) {
	for took, late := range map[time.Duration]bool{gateTimeout: false, gateTimeout + 1: true} {
		n, a, _ := nominates(t)
		clock := noon
		n.cluster.now = func() time.Time { return clock }
		n.gates.now = n.cluster.now
		a.answer = func(call string, _ *http.Request) (int, any) {
			if strings.HasSuffix(call, pod0) {
				clock = noon.Add(took)
			}
			return 0, nil
		}
		if _, err := n.Reconcile(t.Context(), request("db-0")); err != nil {
			t.Fatal(err)
		}
		if got := len(n.gates.lateIn) > 0; got != late {
			t.Errorf("lifted after %s: late: %v", took, got)
		}
	}
}

// A nomination that was removed is not ours, though we wrote the field last.
func TestNoNominationIsNotOurs(t *testing.T) {
	ours := []metav1.ManagedFieldsEntry{{Manager: wellknown.ManagerName, Subresource: "status",
		FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:nominatedNodeName":{}}}`)}}
	for node, want := range map[string]bool{"": false, "node1": true} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: ours},
			Status: corev1.PodStatus{NominatedNodeName: node}}
		if got := viewPod(p).NominatedByUs; got != want {
			t.Errorf("nominated %q: by us: %v", node, got)
		}
	}
}
