package persistentpodstate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admission "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

func TestNextRole(t *testing.T) {
	type step struct {
		configured, ready bool
		after             time.Duration // since the step before
		want              int32
	}
	for name, steps := range map[string][]step{
		"no Kruise":   {{false, false, 0, serving}, {false, true, 0, serving}},
		"Kruise runs": {{true, true, 0, standby}},
		"being installed": {{false, false, 0, serving}, {true, false, time.Second, serving},
			{true, true, time.Minute, standby}},
		"manager drained": {{true, true, 0, standby}, {true, false, time.Second, standby},
			{true, false, time.Minute, standby}, {true, true, time.Minute, standby}},
		"drained twice": {{true, true, 0, standby}, {true, false, 0, standby}, {true, true, 2 * time.Minute,
			standby}, {true, false, time.Second, standby}, {true, false, 2 * time.Minute, standby}},
		"manager unready for long": {{true, true, 0, standby}, {true, false, time.Second, standby},
			{true, false, kruiseGrace, serving}, {true, false, time.Second, serving}},
		"removed": {{true, true, 0, standby}, {false, false, time.Second, serving}},
		"a new replica, unready": {{true, false, 0, undecided}, {true, false, time.Minute, undecided},
			{true, true, time.Minute, standby}},
		"a new replica, for long": {{true, false, 0, undecided}, {true, false, kruiseGrace, serving}},
	} {
		var r role
		now, state := began, undecided
		for i, s := range steps {
			now = now.Add(s.after)
			if state = r.next(state, s.configured, s.ready, now); state != s.want {
				t.Errorf("%s: role %d after step %d, want %d", name, state, i+1, s.want)
			}
		}
	}
}

// ownCRD returns the CRD of the manifests.
func ownCRD(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile("../../../daemonset/base/crds/apps.kruise.io_persistentpodstates.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd unstructured.Unstructured
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		t.Fatal(err)
	}
	return &crd
}

// versionsOf returns the versions of a CRD, which the caller may change.
func versionsOf(crd *unstructured.Unstructured) []any {
	return crd.Object["spec"].(map[string]any)["versions"].([]any)
}

// Both versions of the CRD are served and have one schema, because nothing converts them.
func TestCRD(t *testing.T) {
	var names, schemas []string
	for _, v := range versionsOf(ownCRD(t)) {
		version := v.(map[string]any)
		names = append(names, fmt.Sprintf("%s %v %v", version["name"], version["served"], version["storage"]))
		schemas = append(schemas, fmt.Sprint(version["schema"]))
	}
	if want := []string{"v1alpha1 true false", "v1beta1 true true"}; !slices.Equal(names, want) {
		t.Errorf("versions %q, want %q", names, want)
	}
	if schemas[0] != schemas[1] {
		t.Error("the versions have different schemas")
	}
}

func TestUnsupported(t *testing.T) {
	for name, c := range map[string]struct {
		change func(crd *unstructured.Unstructured, beta map[string]any)
		want   string
	}{
		"leasehold's": {func(*unstructured.Unstructured, map[string]any) {}, ""},
		"missing":     {func(crd *unstructured.Unstructured, _ map[string]any) { crd.Object = nil }, "is missing"},
		"of an older Kruise": {func(crd *unstructured.Unstructured, _ map[string]any) {
			crd.Object["spec"].(map[string]any)["versions"] = versionsOf(crd)[:1]
		}, "does not have version v1beta1"},
		"not served": {func(_ *unstructured.Unstructured, beta map[string]any) { beta["served"] = false },
			"does not have version v1beta1"},
		"without status": {func(_ *unstructured.Unstructured, beta map[string]any) { delete(beta, "subresources") },
			"has no status subresource"},
		"Kruise's": {func(_ *unstructured.Unstructured, beta map[string]any) {
			unstructured.RemoveNestedField(beta, "schema", "openAPIV3Schema", "properties", "status", "properties",
				"targetUID")
		}, "has no status.targetUID"},
	} {
		crd := ownCRD(t)
		c.change(crd, versionsOf(crd)[1].(map[string]any))
		if got := unsupported(crd); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// roleAPI is an API server that has Kruise, a CRD, or neither. Its calls fail from the given one
// on.
type roleAPI struct {
	client.Reader
	hooks      *admission.MutatingWebhookConfiguration
	ready      map[string]int32 // the ready replicas of Kruise's manager by namespace
	crd        *unstructured.Unstructured
	calls      int
	failing    int
	hasFailing bool
}

var errFailing = errors.New("a bad moment")

func (a *roleAPI) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if a.calls++; a.hasFailing && a.calls > a.failing {
		return errFailing
	}
	switch o := o.(type) {
	case *admission.MutatingWebhookConfiguration:
		if a.hooks != nil && key.Name == kruiseConfiguration {
			a.hooks.DeepCopyInto(o)
			return nil
		}
	case *appsv1.Deployment:
		if n, found := a.ready[key.Namespace]; found && key.Name == kruiseManager {
			o.Status.ReadyReplicas = n
			return nil
		}
	case *unstructured.Unstructured:
		if a.crd != nil && key.Name == crdName {
			a.crd.DeepCopyInto(o)
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func TestDecideRole(t *testing.T) {
	crd := ownCRD(t)
	crd.SetUID("crd-1")
	kruises := crd.DeepCopy()
	unstructured.RemoveNestedField(versionsOf(kruises)[1].(map[string]any), "subresources")
	elsewhere := &admission.MutatingWebhookConfiguration{Webhooks: []admission.MutatingWebhook{{}, {
		ClientConfig: admission.WebhookClientConfig{Service: &admission.ServiceReference{Namespace: "openkruise"}}}}}
	for name, c := range map[string]struct {
		api   roleAPI
		want  int32
		event string
		calls int
	}{
		"leasehold's CRD": {roleAPI{crd: crd}, serving, "", 2},
		"no CRD":          {roleAPI{}, standby, "", 2},
		"Kruise's CRD":    {roleAPI{crd: kruises}, standby, reasonUnfit, 2},
		"Kruise": {roleAPI{crd: crd, hooks: &admission.MutatingWebhookConfiguration{},
			ready: map[string]int32{kruiseNamespace: 1}}, standby, reasonKruise, 3},
		"Kruise in another namespace": {roleAPI{crd: crd, hooks: elsewhere, ready: map[string]int32{"openkruise": 1}},
			standby, reasonKruise, 3},
		"Kruise is not ready": {roleAPI{crd: crd, hooks: elsewhere, ready: map[string]int32{"openkruise": 0}},
			undecided, "", 2},
		"Kruise has no manager": {roleAPI{crd: crd, hooks: elsewhere}, undecided, "", 2},
	} {
		events, isLeader := &eventTexts{}, false
		r := &role{live: &c.api, events: events, isLeader: func() bool { return isLeader }, log: logr.Discard()}
		for _, isLeader = range []bool{false, true, true} {
			if err := r.decide(t.Context(), began); err != nil || r.state.Load() != c.want {
				t.Errorf("%s: role %d, %v, want %d", name, r.state.Load(), err, c.want)
			}
			if !isLeader && len(events.texts) > 0 {
				t.Errorf("%s: events of a follower: %q", name, events.texts)
			}
		}
		isOne := len(events.texts) == 1 && strings.Contains(events.texts[0], c.event)
		if c.event != "" && !isOne || c.event == "" && len(events.texts) > 0 {
			t.Errorf("%s: events %q, want %s", name, events.texts, c.event)
		}
		for failing := range c.calls { // what is not known changes nothing
			failing := &roleAPI{hooks: c.api.hooks, ready: c.api.ready, crd: c.api.crd, failing: failing,
				hasFailing: true}
			r := &role{live: failing, log: logr.Discard()}
			if err := r.decide(t.Context(), began); !errors.Is(err, errFailing) || r.state.Load() != undecided {
				t.Errorf("%s, call %d fails: %v, role %d", name, failing.calls, err, r.state.Load())
			}
		}
	}
}

// While leasehold does not serve PersistentPodStates, its webhooks change and refuse nothing.
func TestWebhooksInStandby(t *testing.T) {
	v := viewOf(state(requires(zone), recorded("db-0", "node1"))).has(statefulSet, true, db())
	copied := annotated(annotationReason, "of Kruise")
	for want, r := range map[bool]*role{true: serves(), false: {}} {
		req := request(t, aPod("db-0", copied))
		response := (&podWebhook{view: v, role: r, log: logr.Discard()}).handler().Handle(t.Context(), req)
		if !response.Allowed || len(response.Patches) > 0 != want {
			t.Errorf("serving %t: the pod is changed by %v", want, response.Patches)
		}
		second := state(requires(zone, zone))
		req = request(t, second)
		n := (&objectWebhook{view: viewOf(), role: r}).Handle(t.Context(), req)
		if !n.Allowed || len(n.Patches) > 0 != want {
			t.Errorf("serving %t: the object is changed by %v", want, n.Patches)
		}
		second.Name = "second"
		if a := (&objectWebhook{view: v, role: r}).Handle(t.Context(), request(t, second)); a.Allowed == want {
			t.Errorf("serving %t: a second object with the target is allowed: %t", want, a.Allowed)
		}
	}
}

// The webhook configuration of the manifests calls the paths that the manager serves.
func TestWebhookPaths(t *testing.T) {
	text, err := os.ReadFile("../../../daemonset/base/manager/webhook.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{podsPath, objectsPath} {
		if !strings.Contains(string(text), "      path: "+path+"\n") {
			t.Errorf("nothing calls %s", path)
		}
	}
}
