package pin

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// blind is a webhook that has not listed anything yet.
func blind(t testing.TB) *webhook {
	t.Helper()
	m, err := newCollectors(prometheus.NewRegistry(), func() float64 { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	return &webhook{
		Options: Options{Mode: policy.PinNominate, Fallback: policy.PinPrefer},
		cluster: &cluster{now: time.Now, synced: []func() bool{func() bool { return false }}},
		gate:    anyGate, collectors: m, log: logr.Discard(),
	}
}

func ask(w *webhook, object []byte) admission.Response {
	return w.handler().Handle(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Namespace: "db", Object: runtime.RawExtension{Raw: object}}})
}

func TestWebhookAdmitsWhatItCannotJudge(t *testing.T) {
	w := blind(t)
	for _, object := range []string{"", "null", "[]", `{"metadata":5}`, `{"spec":{"nodeName":"node1"}}`} {
		if r := ask(w, []byte(object)); !r.Allowed || len(r.Patches) > 0 {
			t.Errorf("%q: %+v", object, r)
		}
	}
	broken := blind(t)
	broken.cluster = nil
	const metadata = `{"metadata":{"name":"db-0","annotations":{"io.kubernetes.cri/reserved-ip-duration":"10"}},`
	if r := ask(broken, []byte(metadata+`"spec":{}}`)); !r.Allowed {
		t.Errorf("a panic: %+v", r)
	}
	later := []byte(metadata + `"spec":{"later":{"field":1}}}`)
	r := ask(w, later)
	if !r.Allowed {
		t.Fatalf("%+v", r)
	}
	got := patched(t, later, r)
	if got != `{"metadata":{"annotations":{"io.kubernetes.cri/reserved-ip-duration":"10",`+
		`"leasehold.dev/pin-reason":"Unknown: its address could not be looked up"},`+
		`"labels":{"leasehold.dev/retained":"true"},"name":"db-0"},`+
		`"spec":{"later":{"field":1}}}` {
		t.Errorf("the pod is %s", got)
	}
}

// What cannot be read is not known: the node may be gone, and the namespace may say off.
func TestFactsThatCannotBeRead(t *testing.T) {
	clock := noon
	for name, is := range map[string]func(client.Object) bool{
		"the node":      func(o client.Object) bool { _, is := o.(*corev1.Node); return is },
		"the namespace": func(o client.Object) bool { _, is := o.(*metav1.PartialObjectMetadata); return is },
		"":              func(client.Object) bool { return false },
	} {
		w := blind(t)
		w.cluster = clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock,
			&reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db"}, Pod: "db-0", Node: "node1", NodeUID: "uid-1",
				Bound: true})
		w.cluster.reader = unreadableIf{w.cluster.reader, is}
		if f := w.facts(t.Context(), "db/db-0", "db", &corev1.Pod{}); f.Known != (name == "") {
			t.Errorf("unreadable is %q: known %t", name, f.Known)
		}
	}
}

// unreadableIf is a cache that cannot read some objects.
type unreadableIf struct {
	client.Reader
	is func(client.Object) bool
}

func (r unreadableIf) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption,
) error {
	if r.is(o) {
		return errUnreadable
	}
	return r.Reader.Get(ctx, key, o, options...)
}

// TestSelectorsAddedLater calls the webhook for a pod in the mode require, and again after another
// webhook has added a selector. The pod's annotations go on to say what it waits for. Annotations
// that a user writes undo no selector.
func TestSelectorsAddedLater(t *testing.T) {
	clock := noon
	w := blind(t)
	w.cluster = clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock,
		&reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db"}, Pod: "db-0", Node: "node1", NodeUID: "uid-1",
			Bound: true})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", Annotations: map[string]string{
		policy.Annotation: "10", "leasehold.dev/pin": "require"}}}
	call := func() {
		t.Helper()
		if err := w.pin(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "db"}},
			pod); err != nil {
			t.Fatal(err)
		}
	}
	waits := func(story, node string, want bool) {
		t.Helper()
		v := viewPod(pod)
		if v.Required != want || v.Pinned != node || !requires(pod, "node1") {
			t.Errorf("%s: required %t, pinned to %q, %v", story, v.Required, v.Pinned, pod.Spec.Affinity)
		}
	}
	call()
	waits("first", "node1", true)
	call()
	waits("again", "node1", true)
	pod.Spec.NodeSelector = map[string]string{"tenant": "a"}
	call()
	waits("another webhook has excluded the node", "node1", true)
	if pod.Spec.NodeSelector["tenant"] != "a" {
		t.Errorf("selector %v", pod.Spec.NodeSelector)
	}

	pod.Annotations["leasehold.dev/pin"] = "none"
	call()
	waits("the annotations are a user's", "", false)
}

// TestLargePodsGetNoGate has pods of which it is not certain that the manager's policy lets their
// gates be lifted.
func TestLargePodsGetNoGate(t *testing.T) {
	clock := noon
	w := blind(t)
	w.Schedulers = []string{"default-scheduler"}
	w.cluster = clusterOf(t, map[string]*corev1.Node{"node1": node("node1")}, &clock,
		&reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db"}, Pod: "db-0", Node: "node1", NodeUID: "uid-1",
			Bound: true})
	many := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[strconv.FormatInt(int64(i), 36)] = ""
		}
		return m
	}
	gates := func(n int) (out []corev1.PodSchedulingGate) {
		for i := range n {
			out = append(out, corev1.PodSchedulingGate{Name: fmt.Sprint("a.b/", i)})
		}
		return out
	}
	for story, c := range map[string]struct {
		change func(*corev1.Pod)
		gate   bool
	}{
		"as any":               {func(*corev1.Pod) {}, true},
		"a hundred, a few KiB": {func(p *corev1.Pod) { p.Annotations, p.Labels = many(100), many(100) }, true},
		"the most of each": {func(p *corev1.Pod) {
			p.Annotations, p.Labels = many(maxGatedAnnotations-1), many(maxGatedLabels) // and the one that asks
			p.Spec.SchedulingGates = gates(maxGatedGates)
		}, true},
		"an annotation more": {func(p *corev1.Pod) { p.Annotations = many(maxGatedAnnotations) }, false},
		"a label more":       {func(p *corev1.Pod) { p.Labels = many(maxGatedLabels + 1) }, false},
		"a gate more":        {func(p *corev1.Pod) { p.Spec.SchedulingGates = gates(maxGatedGates + 1) }, false},
		"50,000 annotations": {func(p *corev1.Pod) { p.Annotations = many(50000) }, false},
		"many labels":        {func(p *corev1.Pod) { p.Labels = many(5000) }, false},
		"many gates":         {func(p *corev1.Pod) { p.Spec.SchedulingGates = gates(1000) }, false},
		"a large environment": {func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "A",
				Value: strings.Repeat("a", 600<<10)}}}}
		}, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0"},
			Spec: corev1.PodSpec{SchedulerName: "default-scheduler"}}
		c.change(pod)
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[policy.Annotation] = "10"
		object, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		r := ask(w, object)
		got := patched(t, object, r)
		if gate := strings.Contains(got, "leasehold.dev/nominate"); !r.Allowed || gate != c.gate ||
			strings.Contains(got, "the pod is too large") == c.gate {
			t.Errorf("%s: gate %t, want %t; %v", story, gate, c.gate, r.Patches)
		}
	}
}

// anyGate reports whether a pod may have a gate: each may.
func anyGate(context.Context, string, string) bool { return true }

// patched applies a response as the API server does, and sorts the keys.
func patched(t testing.TB, object []byte, r admission.Response) string {
	t.Helper()
	ops, err := json.Marshal(r.Patches)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(ops)
	if err != nil {
		t.Fatal(err)
	}
	out, err := patch.Apply(object)
	if err != nil {
		t.Fatalf("the patch %s does not apply to %s: %v", ops, object, err)
	}
	var sorted any
	if err := json.Unmarshal(out, &sorted); err != nil {
		t.Fatal(err)
	}
	out, _ = json.Marshal(sorted)
	return string(out)
}

// TestWebhookPatches proves that every answer is yes, that its patch applies, and that a second
// call adds nothing. It is no fuzz target: those are built anew with all that they link, which here
// is Kubernetes.
func TestWebhookPatches(t *testing.T) {
	w := blind(t)
	rapid.Check(t, func(rt *rapid.T) {
		pod := anyPod(rt)
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[policy.Annotation] = rapid.SampledFrom([]string{"10", "forever", "0", "ten"}).Draw(rt, "window")
		pod.Annotations["leasehold.dev/pin"] = rapid.SampledFrom([]string{"nominate", "none", "must"}).Draw(rt, "mode")
		object, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		r := ask(w, object)
		if !r.Allowed {
			rt.Fatalf("%+v", r)
		}
		once := patched(t, object, r)
		if again := ask(w, []byte(once)); len(again.Patches) > 0 {
			rt.Fatalf("a second call changes %s by %v", once, again.Patches)
		}
	})
}
