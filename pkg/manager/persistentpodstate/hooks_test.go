package persistentpodstate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
)

// request returns the admission request for a new object or, with an old one, for its update.
func request(t *testing.T, object any, old ...any) admission.Request {
	t.Helper()
	raw := func(o any) runtime.RawExtension {
		if text, ok := o.(string); ok {
			return runtime.RawExtension{Raw: []byte(text)}
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: text}
	}
	req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: "ns", Object: raw(object)}}
	if len(old) > 0 {
		req.Operation, req.OldObject = admissionv1.Update, raw(old[0])
	}
	return req
}

// patched returns the object with the response's patches applied.
func patched[T any](t *testing.T, req admission.Request, resp admission.Response) T {
	t.Helper()
	if !resp.Allowed {
		t.Fatalf("denied: %v", resp.Result)
	}
	text := req.Object.Raw
	if len(resp.Patches) > 0 {
		list, err := json.Marshal(resp.Patches)
		if err != nil {
			t.Fatal(err)
		}
		patch, err := jsonpatch.DecodePatch(list)
		if err == nil {
			text, err = patch.Apply(text)
		}
		if err != nil {
			t.Fatalf("%s: %v", list, err)
		}
	}
	var o T
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// A failed lookup does not stop a pod, and is reported in an annotation.
func TestFailedLookupAdmitsThePod(t *testing.T) {
	v := &clusterView{kinds: builtIn, history: newHistory(), nodesSynced: func() bool { return false }}
	b := &podWebhook{view: v, releaseGone: true, log: logr.Discard()}
	req := request(t, aPod("db-0"))
	pod := patched[corev1.Pod](t, req, b.handler().Handle(t.Context(), req))
	if why := pod.Annotations[annotationReason]; why != "lookup failed: the informers have not synced yet" {
		t.Errorf("annotation %q", why)
	}
}

// A pod without a name has no predecessor, and a pod with a node needs none: nothing is looked up.
func TestPodsWithoutALookup(t *testing.T) {
	v := &clusterView{kinds: builtIn, history: newHistory(), nodesSynced: func() bool { return false }}
	b := &podWebhook{view: v, log: logr.Discard()}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		err    error
	}{
		"a pod of a set":     {func(*corev1.Pod) {}, errNotSynced},
		"without a name":     {func(p *corev1.Pod) { p.Name, p.GenerateName = "", "db-" }, nil},
		"on a node":          {func(p *corev1.Pod) { p.Spec.NodeName = "node1" }, nil},
		"without a workload": {func(p *corev1.Pod) { p.OwnerReferences = nil }, nil},
	} {
		if err := b.inject(t.Context(), "default", aPod("db-0", c.change), nil); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
	}
}

// failing is an API server whose nodes cannot be read.
type failing struct{ client.Reader }

func (failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("a bad moment")
}

func TestUnreadableNodesAreNoGoneNodes(t *testing.T) {
	v := viewOf(state(requires(hostname), recorded("db-0", "node1")))
	v.nodes = failing{}
	pod := v.admit(t, aPod("db-0"))
	if why := pod.Annotations[annotationReason]; !strings.Contains(why,
		"lookup failed: getting node node1: a bad moment") {
		t.Errorf("annotation %q", why)
	}
	if len(pod.Spec.NodeSelector) > 0 || pod.Annotations[pps.AnnotationInjected] != "" {
		t.Errorf("injected %v, %v", pod.Spec.NodeSelector, pod.Annotations)
	}
}

// unlistable is a cache of nodes that can be read one by one only.
type unlistable struct{ cluster }

func (unlistable) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("a bad moment")
}

// Labels are only required if it is known which nodes have them.
func TestUnlistableNodes(t *testing.T) {
	v := viewOf(state(requires(zone), recorded("db-0", "node1")))
	v.nodes = unlistable{three()}
	own := map[string]string{hostname: "node2"}
	pod := v.admit(t, aPod("db-0", func(p *corev1.Pod) { p.Spec.NodeSelector = own }))
	if why := pod.Annotations[annotationReason]; why != "lookup failed: listing nodes: a bad moment" ||
		!maps.Equal(pod.Spec.NodeSelector, own) {
		t.Errorf("annotation %q, node selector %v", why, pod.Spec.NodeSelector)
	}
}

// What cannot be decoded is rejected, by both webhooks: it would be stored as it is.
func TestObjectsThatCannotBeDecodedAreRejected(t *testing.T) {
	for _, object := range []string{`{"spec":5}`, "", "[]", "old"} {
		req := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: admissionv1.Create,
			Object: runtime.RawExtension{Raw: []byte(object)}}}
		if object == "old" { // only the old object cannot be decoded
			req = request(t, state(), state())
			req.OldObject.Raw = []byte(`{"spec":5}`)
		}
		for name, h := range map[string]admission.Handler{"validator": &validator{view: viewOf(), kinds: builtIn},
			"normalizer": normalizer{}} {
			if r := h.Handle(t.Context(), req); r.Allowed || r.Result.Code != 400 {
				t.Errorf("%s, %q: %+v", name, object, r)
			}
		}
	}
}

// listed returns the watch of a complete list.
func listed[O metav1.Object, V any](view func(O) V, indexes informer.Indexes[V], objects ...O) *watched[V] {
	w := &watched[V]{Informer: informer.New(view, indexes)}
	var list []any
	for _, o := range objects {
		list = append(list, o)
	}
	if err := w.Replace(list, ""); err != nil {
		panic(err)
	}
	return w
}

// viewOf returns a view of the given objects, without an API server.
func viewOf(objects ...*pps.PersistentPodState) *clusterView {
	asItIs := func(o *pps.PersistentPodState) *pps.PersistentPodState { return o }
	return &clusterView{kinds: builtIn, history: newHistory(), departed: newDepartedNodes(time.Minute), nodes: three(),
		nodesSynced: func() bool { return true }, objects: listed(asItIs, indexes, objects...),
		crdsGone: map[string]bool{}, workloads: map[schema.GroupKind]*watched[*workload]{},
		outdated: workqueue.NewTyped[string]()}
}

func TestPatchKeepsUnknownFields(t *testing.T) {
	b := &podWebhook{view: viewOf(), log: logr.Discard()}
	req := request(t,
		`{"metadata":{"name":"db-0","annotations":{"`+pps.AnnotationInjected+`":"copied"}},"spec":{"futureField":{`+
			`"a":1}}}`)
	pod := patched[map[string]any](t, req, b.handler().Handle(t.Context(), req))
	if _, found, _ := unstructured.NestedFieldNoCopy(pod, "spec", "futureField", "a"); !found {
		t.Errorf("spec is %v", pod["spec"])
	}
	if strings.Contains(fmt.Sprint(pod), "copied") {
		t.Errorf("a copied annotation stays: %v", pod)
	}
}

func TestNormalizer(t *testing.T) {
	const (
		object = `{"apiVersion":"apps.kruise.io/v1beta1","metadata":{"name":"db"},` +
			`"spec":{"targetRef":{"apiVersion":"apps/v1","kind":"StatefulSet","name":"db"},%s}}`
		alpha = `"requiredPersistentTopology":{"nodeTopologyKeys":["zone"]},` +
			`"preferredPersistentTopology":[{"weight":1,"preference":{"keys":["a"]}}]`
		both = `"requiredPersistentTopology":{"keys":["%s"],"nodeTopologyKeys":["%s"]}`
	)
	req := request(t, fmt.Sprintf(object, alpha))
	o := patched[pps.PersistentPodState](t, req, normalizer{}.Handle(t.Context(), req))
	if r := o.Spec.RequiredPersistentTopology; !slices.Equal(r.Keys, []string{"zone"}) ||
		!slices.Equal(r.NodeTopologyKeys, r.Keys) {
		t.Errorf("required %+v", r)
	}
	if p := o.Spec.PreferredPersistentTopology[0].Preference; !slices.Equal(p.NodeTopologyKeys, []string{"a"}) {
		t.Errorf("preferred %+v", p)
	}
	change := request(t, fmt.Sprintf(object, fmt.Sprintf(both, "zone", "host")),
		fmt.Sprintf(object, fmt.Sprintf(both, "zone", "zone")))
	o = patched[pps.PersistentPodState](t, change, normalizer{}.Handle(t.Context(), change))
	if r := o.Spec.RequiredPersistentTopology; !slices.Equal(r.Keys, []string{"host"}) {
		t.Errorf("changed to %+v", r)
	}
	for _, empty := range []string{`"keys":[]`, `"nodeTopologyKeys":[]`, `"keys":[],"nodeTopologyKeys":["zone"]`} {
		req := request(t, fmt.Sprintf(object, `"requiredPersistentTopology":{`+empty+`}`),
			fmt.Sprintf(object, fmt.Sprintf(both, "zone", "zone")))
		o := patched[pps.PersistentPodState](t, req, normalizer{}.Handle(t.Context(), req))
		if o.Spec.RequiredPersistentTopology != nil {
			t.Errorf("%s is %+v", empty, o.Spec.RequiredPersistentTopology)
		}
	}
	resp := normalizer{}.Handle(t.Context(), request(t, fmt.Sprintf(object, fmt.Sprintf(both, "a", "b"))))
	if resp.Allowed || !strings.Contains(resp.Result.Message, "differ; set one of them") {
		t.Errorf("%+v", resp)
	}
}

func TestValidatorAllowsChangesToOldObjects(t *testing.T) {
	v := &validator{view: viewOf(state()), kinds: builtIn}
	bad := state(func(o *pps.PersistentPodState) { o.Name, o.Spec.TargetRef.Kind = "old", "Deployment" })
	going := bad.DeepCopy()
	going.Finalizers = []string{"somebody/else"}
	if resp := v.Handle(t.Context(), request(t, going, bad)); !resp.Allowed {
		t.Errorf("a change of finalizers was denied: %v", resp.Result)
	}
	going.Spec.PreferredPersistentTopology[0].Weight = 7
	if resp := v.Handle(t.Context(), request(t, going, bad)); resp.Allowed {
		t.Error("an invalid change of the spec was allowed")
	}
	second := state(func(o *pps.PersistentPodState) { o.Name = "second" })
	if resp := v.Handle(t.Context(), request(t, second)); resp.Allowed || resp.Result == nil ||
		resp.Result.Code != http.StatusForbidden || resp.Result.Message == "" {
		t.Errorf("a second object with the target: %+v", resp)
	}
}

// BenchmarkLookup shows that the cost of a lookup does not grow with the number of objects.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var all []*pps.PersistentPodState
			for i := range n {
				all = append(all, state(func(o *pps.PersistentPodState) {
					o.Name = fmt.Sprint(i)
					o.Spec.TargetRef.Name = o.Name
				}))
			}
			v := viewOf(all...)
			target := targetOf(all[7])
			for b.Loop() {
				if len(v.Objects(target)) != 1 {
					b.Fatal("not found")
				}
			}
		})
	}
}

func TestOldestObjectIsFirst(t *testing.T) {
	at := func(name string, minute int) *pps.PersistentPodState {
		return state(func(o *pps.PersistentPodState) {
			o.Name, o.CreationTimestamp = name, metav1.NewTime(began.Add(time.Duration(minute)*time.Minute))
		})
	}
	v := viewOf(at("b", 2), at("c", 1), at("a", 2))
	var names []string
	for _, o := range v.Objects(targetOf(state())) {
		names = append(names, o.Name)
	}
	if !slices.Equal(names, []string{"c", "a", "b"}) {
		t.Errorf("%v", names)
	}
}

func TestCRD(t *testing.T) {
	crd := embeddedCRD()
	if crd.GetName() != crdName || crd.GetLabels()[managedBy] != us || len(crd.GetAnnotations()[crdVersion]) != 16 {
		t.Errorf("%v", crd.Object["metadata"])
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	var names []string
	var schemas []string
	for _, v := range versions {
		version := v.(map[string]any)
		names = append(names, fmt.Sprintf("%s %v %v", version["name"], version["served"], version["storage"]))
		text, _ := json.Marshal(version["schema"])
		schemas = append(schemas, string(text))
	}
	if want := []string{"v1alpha1 true false", "v1beta1 true true"}; !slices.Equal(names, want) {
		t.Errorf("versions %q, want %q", names, want)
	}
	if schemas[0] != schemas[1] {
		t.Error("the versions have different schemas")
	}
}
