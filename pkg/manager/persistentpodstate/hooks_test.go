package persistentpodstate

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// request returns the admission request for a new object or, with an old one, for its update.
func request(t *testing.T, object any, old ...any) admission.Request {
	t.Helper()
	raw := func(o any) runtime.RawExtension {
		if text, ok := o.(string); ok {
			return runtime.RawExtension{Raw: []byte(text)}
		}
		text, err := json.Marshal(o)
		must.Succeed(t, err)
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
		must.Succeed(t, err)
		patch, err := jsonpatch.DecodePatch(list)
		if err == nil {
			text, err = patch.Apply(text)
		}
		must.Succeed(t, err, list)
	}
	var o T
	must.Succeed(t, json.Unmarshal(text, &o))
	return o
}

// A failed lookup does not stop a pod, and is reported in an annotation.
func TestFailedLookupAdmitsThePod(t *testing.T) {
	pod := unsynced().admit(t, aPod("db-0"))
	check.Equal(t, pod.Annotations[annotationReason], "lookup failed: the informers have not synced yet", "annotation")
}

// objects returns the webhooks with a view.
func objects(v *clusterView) *webhooks { return &webhooks{view: v, role: serves()} }

func TestValidatorAllowsChangesToOldObjects(t *testing.T) {
	v := objects(viewOf(state()))
	bad := state(func(o *pps.PersistentPodState) { o.Name, o.Spec.TargetRef.Kind = "old", "Deployment" })
	going := bad.DeepCopy()
	going.Finalizers = []string{"somebody/else"}
	if resp := v.object(t.Context(), request(t, going, bad)); !resp.Allowed {
		t.Errorf("a change of finalizers was denied: %v", resp.Result)
	}
	going.Spec.PreferredPersistentTopology[0].Weight = 7
	if resp := v.object(t.Context(), request(t, going, bad)); resp.Allowed {
		t.Error("an invalid change of the spec was allowed")
	}
}

// An object of which only a part is used is accepted as it is, with a warning, at a cost that its
// size bounds. What is used has to be valid.
func TestValidatorOfLargeObjects(t *testing.T) {
	v := objects(viewOf())
	many := make([]string, 50_000)
	for i := range many {
		many[i] = fmt.Sprint("example.com/", i)
	}
	resp := v.object(t.Context(), request(t, state(requires(many...))))
	if !resp.Allowed || len(resp.Patches) > 0 || !slices.Equal(resp.Warnings, []string{"spec: " + onlyTheFirst}) {
		t.Errorf("%+v", resp)
	}
	many[1] = "not a label"
	if resp := v.object(t.Context(), request(t, state(requires(many...)))); resp.Allowed {
		t.Error("a name that is no label's was accepted")
	}
}

// A pod that has a node, or no name, is not changed.
func TestPodsThatAreNotInjected(t *testing.T) {
	v := viewOf(state(requires(zone), recorded("db-0", "node1"))).has(statefulSet, true, db())
	if got := v.admit(t, aPod("db-0")); got.Spec.NodeSelector[zone] == "" {
		t.Fatalf("not injected: %v, %v", got.Spec.NodeSelector, got.Annotations)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"with a node":    func(p *corev1.Pod) { p.Spec.NodeName = "node2" },
		"without a name": func(p *corev1.Pod) { p.Name = "" },
		"without an owner": func(p *corev1.Pod) {
			p.OwnerReferences = nil
		},
	} {
		got := v.admit(t, aPod("db-0", change))
		check.Equal(t, len(got.Spec.NodeSelector), 0, name, got.Spec.NodeSelector)
		check.Equal(t, got.Annotations[pps.AnnotationInjected], "", name)
	}
	// The states of an object belong to the workload that its status names.
	for uid, want := range map[string]bool{"set-1": true, "": true, "earlier": false} {
		o := state(requires(zone), recorded("db-0", "node1"))
		o.Status.TargetUID = uid
		v := viewOf(o).has(statefulSet, true, db())
		got := v.admit(t, aPod("db-0"))
		check.Equal(t, got.Spec.NodeSelector[zone] != "", want, "a status of the workload", uid, got.Spec.NodeSelector)
	}
	leaving := state(requires(zone), recorded("db-0", "node1"))
	leaving.DeletionTimestamp = &metav1.Time{Time: began}
	if got := viewOf(leaving).has(statefulSet, true, db()).admit(t, aPod("db-0")); len(got.Spec.NodeSelector) > 0 {
		t.Errorf("an object that is being deleted: %v", got.Spec.NodeSelector)
	}
}

// An object that is being deleted does not prevent another one with its target.
func TestValidatorIgnoresObjectsThatAreDeleted(t *testing.T) {
	second := state(func(o *pps.PersistentPodState) { o.Name = "second" })
	for leaving, want := range map[bool]bool{true: true, false: false} {
		first := state()
		if leaving {
			first.DeletionTimestamp = &metav1.Time{Time: began}
		}
		v := objects(viewOf(first))
		resp := v.object(t.Context(), request(t, second))
		isDenied := resp.Result != nil && resp.Result.Code == http.StatusForbidden && resp.Result.Message != ""
		if resp.Allowed != want || isDenied == want {
			t.Errorf("the first one is being deleted: %v; the second: %+v", leaving, resp)
		}
		if resp := v.object(t.Context(), request(t, first)); !resp.Allowed {
			t.Errorf("the first one again: %v", resp.Result)
		}
	}
}
