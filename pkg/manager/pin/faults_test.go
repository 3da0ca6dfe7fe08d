package pin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
			FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:status":{"f:nominatedNodeName":{}}}`)}}
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
			entry(func(e *metav1.ManagedFieldsEntry) { e.FieldsV1.Raw = []byte(`{"f:spec":{}}`) }), false},
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

	l, clock, admitted := limited()
	if !admitted("db/0") || !admitted("db/0") || len(l.gates) != 1 || l.namespaces["db"].gates != 1 {
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

	l, clock, _ = limited()
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
	// When the last admission of a namespace ends, those that wait try again.
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
			name == "no answer" && again > maxProbePause {
			t.Errorf("%s: %+v, again after %s, %d redials", name, p, again, redials)
		}
	}
}
