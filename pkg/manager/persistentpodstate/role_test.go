package persistentpodstate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// ownCRD returns the CRD of the manifests.
func ownCRD(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	text := must.Read(t, "../../../daemonset/base/crds/apps.kruise.io_persistentpodstates.yaml")
	var crd unstructured.Unstructured
	must.Succeed(t, yaml.Unmarshal(text, &crd.Object))
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
	check.Slices(t, names, []string{"v1alpha1 true false", "v1beta1 true true"}, "versions")
	check.Equal(t, schemas[0], schemas[1], "the schemas of the versions")
}

// roleAPI is an API server that has Kruise, a CRD, or neither. Its calls fail from the given one
// on.
type roleAPI struct {
	client.Reader
	hasKruise    bool
	crd          *unstructured.Unstructured
	calls, works int
}

var errFailing = errors.New("a bad moment")

func (a *roleAPI) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if a.calls++; a.calls > a.works {
		return errFailing
	}
	switch o := o.(type) {
	case *metav1.PartialObjectMetadata:
		if a.hasKruise && key.Name == kruiseConfiguration {
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

func TestRole(t *testing.T) {
	crd := func(change func(crd *unstructured.Unstructured, beta map[string]any)) *unstructured.Unstructured {
		crd := ownCRD(t)
		crd.SetUID("crd-1")
		change(crd, versionsOf(crd)[1].(map[string]any))
		return crd
	}
	own := crd(func(*unstructured.Unstructured, map[string]any) {})
	for name, c := range map[string]struct {
		hasKruise bool
		crd       *unstructured.Unstructured
		event     string // "" if leasehold serves, or nobody can be told
	}{
		"leasehold's CRD": {false, own, ""},
		"no CRD":          {false, nil, ""},
		"Kruise":          {true, own, reasonKruise},
		"the CRD of an older Kruise": {false, crd(func(crd *unstructured.Unstructured, _ map[string]any) {
			crd.Object["spec"].(map[string]any)["versions"] = versionsOf(crd)[:1]
		}), reasonUnfit},
		"a version that is not served": {false, crd(func(_ *unstructured.Unstructured, beta map[string]any) {
			beta["served"] = false
		}), reasonUnfit},
		"a CRD without status": {false, crd(func(_ *unstructured.Unstructured, beta map[string]any) {
			delete(beta, "subresources")
		}), reasonUnfit},
		"Kruise's CRD": {false, crd(func(_ *unstructured.Unstructured, beta map[string]any) {
			unstructured.RemoveNestedField(beta, "schema", "openAPIV3Schema", "properties", "status", "properties",
				"targetUID")
		}), reasonUnfit},
	} {
		events, isLeader, api := &eventTexts{}, false, &roleAPI{hasKruise: c.hasKruise, crd: c.crd, works: 100}
		r := &role{live: api, events: events, isLeader: func() bool { return isLeader }, log: logr.Discard()}
		want := c.event == "" && c.crd != nil
		for _, isLeader = range []bool{false, true, true} {
			if err := r.decide(t.Context()); err != nil || r.serving.Load() != want {
				t.Errorf("%s: serves %t, %v, want %t", name, r.serving.Load(), err, want)
			}
			if !isLeader && len(events.texts) > 0 {
				t.Errorf("%s: events of a follower: %q", name, events.texts)
			}
		}
		isOne := len(events.texts) == 1 && strings.Contains(events.texts[0], c.event)
		if c.event != "" && !isOne || c.event == "" && len(events.texts) > 0 {
			t.Errorf("%s: events %q, want %s", name, events.texts, c.event)
		}
		for works := range 2 { // what is not known changes nothing
			api.calls, api.works = 0, works
			if err := r.decide(t.Context()); !errors.Is(err, errFailing) || r.serving.Load() != want {
				t.Errorf("%s, call %d fails: %v, serves %t", name, api.calls, err, r.serving.Load())
			}
		}
	}
}
