package control

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// handle serves one request through controller-runtime, as if the API server had sent it.
func handle(object string, change func(*corev1.Pod) error) admission.Response {
	hook := admission.Webhook{Handler: PodWebhook(logr.Discard(), func(_ context.Context, _ admission.Request,
		p *corev1.Pod) error {
		return change(p)
	})}
	return hook.Handle(context.Background(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		UID: "r1", Namespace: "db", Object: runtime.RawExtension{Raw: []byte(object)}}})
}

func TestPodsAreAdmittedUnchangedOnFailure(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod) error{
		"an error": func(p *corev1.Pod) error {
			p.Labels = map[string]string{"half": "done"}
			return errors.New("no answer")
		},
		"a panic": func(p *corev1.Pod) error {
			p.Labels["a"] = "b"
			return nil
		},
	} {
		if r := handle(`{"metadata":{"name":"db-0"},"spec":{}}`, change); !r.Allowed || len(r.Patch) > 0 ||
			r.UID != "r1" ||
			r.Result.Code != 200 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for _, object := range []string{"", "[]", `{"metadata":5}`} {
		if r := handle(object, func(*corev1.Pod) error { panic("called with an invalid pod") }); !r.Allowed ||
			len(r.Patch) > 0 {
			t.Errorf("%q: %+v", object, r)
		}
	}
}

// The API server rejects a pod with a longer name after it has called the webhook.
func TestLongNames(t *testing.T) {
	for length, want := range map[int]bool{253: true, 254: false} {
		called := false
		object := `{"metadata":{"name":"` + strings.Repeat("a", length) + `"},"spec":{}}`
		r := handle(object, func(*corev1.Pod) error { called = true; return nil })
		if !r.Allowed || called != want {
			t.Errorf("a name of %d bytes: allowed %t, called %t", length, r.Allowed, called)
		}
	}
}

// A pod whose annotations would exceed the API server's limit is admitted unchanged: it would be
// rejected otherwise.
func TestPodsAreAdmittedUnchangedAtTheAnnotationLimit(t *testing.T) {
	for size, patched := range map[int]bool{256<<10 - 100: true, 256<<10 - 10: false} {
		object := `{"metadata":{"name":"db-0","annotations":{"a":"` + strings.Repeat("b", size-1) + `"}},"spec":{}}`
		r := handle(object, func(p *corev1.Pod) error {
			p.Annotations["leasehold.dev/pin-reason"] = "some reason"
			return nil
		})
		if !r.Allowed || len(r.Patch) > 0 != patched {
			t.Errorf("%d bytes: %t, patch %t", size, r.Allowed, len(r.Patch) > 0)
		}
	}
}

// TestPodsPatch verifies that a patch contains the modifications of the fields that it may change,
// and keeps fields that the types do not know.
func TestPodsPatch(t *testing.T) {
	const object = `{"metadata":{"name":"db-0","annotations":{"a/b":"c"},"later":1},` +
		`"spec":{"containers":[{"name":"main"}],"later":2,` +
		`"affinity":{"later":3,"nodeAffinity":{"later":4}},"schedulingGates":[{"name":"a.b/c"},{"name":"d.e/f"}]}}`
	if r := handle(object, func(*corev1.Pod) error { return nil }); !r.Allowed || len(r.Patch) > 0 ||
		r.PatchType != nil {
		t.Errorf("without a modification: %+v", r)
	}
	r := handle(object, func(p *corev1.Pod) error {
		p.Labels = map[string]string{"l": "m"}
		delete(p.Annotations, "a/b")
		p.Spec.SchedulingGates = p.Spec.SchedulingGates[1:] // is dropped
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		nodes := p.Spec.Affinity.NodeAffinity
		nodes.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: 7}}
		return nil
	})
	patch, err := jsonpatch.DecodePatch(r.Patch)
	must.Succeed(t, err)
	out, err := patch.Apply([]byte(object))
	must.Succeed(t, err, string(r.Patch))
	var sorted any
	must.Succeed(t, json.Unmarshal(out, &sorted))
	out, _ = json.Marshal(sorted)
	const want = `{"metadata":{"labels":{"l":"m"},"later":1,"name":"db-0"},"spec":{` +
		`"affinity":{"later":3,"nodeAffinity":{"later":4,` +
		`"preferredDuringSchedulingIgnoredDuringExecution":[{"preference":{},"weight":7}]}},` +
		`"containers":[{"name":"main"}],"later":2,"nodeSelector":{"disk":"ssd"},"schedulingGates":` +
		`[{"name":"a.b/c"},{"name":"d.e/f"}]}}`
	check.Equal(t, string(out), want, "the pod")
}
