package persistentpodstate

import (
	"encoding/json"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission/metrics"

	pps "github.com/leasehold-cni/leasehold/pkg/kube/apis/apps/v1beta1"
)

// FuzzObject has users write any PersistentPodState, as an update of any other, and any pod of its
// workload. The webhooks of the objects answer, what they allow has a normal form, and no pod is
// refused or makes a webhook panic.
func FuzzObject(f *testing.F) {
	spec := `"spec":{"targetRef":{"apiVersion":"apps/v1","kind":"StatefulSet","name":"db"},`
	object := `{"metadata":{"namespace":"ns","name":"db"},` + spec +
		`"requiredPersistentTopology":{"nodeTopologyKeys":["zone"]},"preferredPersistentTopology":[{"weight":100,` +
		`"preference":{"nodeTopologyKeys":["kubernetes.io/hostname"]}}]},"status":{"targetUID":"set-1","podStates":` +
		`{"db-0":{"nodeName":"node1","nodeTopologyLabels":{"zone":"z1"}}}}}`
	pod := `{"metadata":{"namespace":"ns","name":"db-0","ownerReferences":[{"apiVersion":"apps/v1","kind":` +
		`"StatefulSet","name":"db","uid":"set-1","controller":true}]},"spec":{"nodeSelector":{"a":"b"}}}`
	f.Add([]byte(object), []byte(`{`+spec+`"requiredPersistentTopology":{"keys":["a"]}}}`), []byte(pod))
	f.Add([]byte(`{}`), []byte(`null`), []byte(`{"metadata":{"annotations":{"`+pps.AnnotationInjected+`":"{"}}}`))
	f.Fuzz(func(t *testing.T, object, old, pod []byte) {
		request := func(object, old []byte) admission.Request {
			r := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Namespace: "ns",
				Operation: admissionv1.Update, Object: runtime.RawExtension{Raw: object},
				OldObject: runtime.RawExtension{Raw: old}}}
			if len(old) == 0 {
				r.Operation = admissionv1.Create
			}
			return r
		}
		req := request(object, old)
		objects(viewOf()).Handle(t.Context(), req)
		var o pps.PersistentPodState
		if json.Unmarshal(object, &o) != nil || o.Spec.Normalize(nil) != nil {
			return
		}
		o.Namespace, o.Spec.TargetRef = "ns", state().Spec.TargetRef
		v := viewOf(&o)
		panics := testutil.ToFloat64(metrics.WebhookPanics)
		w := &podWebhook{view: v, role: serves(), log: logr.Discard()}
		if r := w.handler().Handle(t.Context(), request(pod, nil)); !r.Allowed {
			t.Errorf("pod %s is refused: %+v", pod, r.Result)
		}
		if testutil.ToFloat64(metrics.WebhookPanics) > panics {
			t.Errorf("a panic with pod %s and object %s", pod, object)
		}
	})
}
