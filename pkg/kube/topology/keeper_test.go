package topology

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestWhoseJobThisIs(t *testing.T) {
	type look struct {
		configured, ready bool
		after             time.Duration // since the look before
		want              int32
	}
	for story, looks := range map[string][]look{
		"no Kruise":                {{false, false, 0, serving}, {false, true, 0, serving}},
		"Kruise is here":           {{true, true, 0, aside}},
		"it is being installed":    {{false, false, 0, serving}, {true, false, time.Second, serving}, {true, true, time.Minute, aside}},
		"its manager is drained":   {{true, true, 0, aside}, {true, false, time.Second, aside}, {true, false, time.Minute, aside}, {true, true, time.Minute, aside}},
		"twice, shortly":           {{true, true, 0, aside}, {true, false, 0, aside}, {true, true, 2 * time.Minute, aside}, {true, false, time.Second, aside}, {true, false, 2 * time.Minute, aside}},
		"its manager is dead":      {{true, true, 0, aside}, {true, false, time.Second, aside}, {true, false, patience, serving}, {true, false, time.Second, serving}},
		"it is removed":            {{true, true, 0, aside}, {false, false, time.Second, serving}},
		"a new leader, unready":    {{true, false, 0, undecided}, {true, false, time.Minute, undecided}, {true, true, time.Minute, aside}},
		"a new leader, it is dead": {{true, false, 0, undecided}, {true, false, patience, serving}},
	} {
		var k kruise
		now, stance := began, undecided
		for i, l := range looks {
			now = now.Add(l.after)
			if stance = k.decide(stance, l.configured, l.ready, now); stance != l.want {
				t.Errorf("%s: %d after look %d, want %d", story, stance, i+1, l.want)
			}
		}
	}
}

// unlisted is an API server with a Secret, to which configurations and a CRD may come.
type unlisted struct {
	client.Client
	configured bool
	written    []string
}

func (u *unlisted) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if secret, ok := o.(*corev1.Secret); ok {
		secret.Data = map[string][]byte{"ca.crt": []byte("ca")}
		return nil
	}
	if u.configured && key.Name == ConfigurationName {
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (u *unlisted) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	u.written = append(u.written, fmt.Sprintf("+%T", o))
	return nil
}

func (u *unlisted) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	u.written = append(u.written, fmt.Sprintf("%T", o))
	return nil
}

// What somebody has deleted of the manifests stops nothing else, and counts from when it is there again.
func TestAMissingConfigurationStopsNothing(t *testing.T) {
	api := &unlisted{}
	k := &keeper{view: viewOf(), kinds: builtIn, client: api, live: api, stance: &stance{}, log: logr.Discard()}
	look := func() {
		t.Helper()
		result, err := k.Reconcile(t.Context(), struct{}{})
		if err != nil || result.RequeueAfter != lookEvery || k.stance.state.Load() != serving {
			t.Errorf("%+v, %v, stance %d", result, err, k.stance.state.Load())
		}
	}
	look()
	if want := []string{"+*unstructured.Unstructured"}; !slices.Equal(api.written, want) {
		t.Errorf("without: %q, want %q", api.written, want)
	}
	api.configured, api.written = true, nil
	look()
	if want := []string{"*v1.ValidatingWebhookConfiguration", "*v1.MutatingWebhookConfiguration", "+*unstructured.Unstructured"}; !slices.Equal(api.written, want) {
		t.Errorf("with: %q, want %q", api.written, want)
	}
}

func TestUnfitCRDs(t *testing.T) {
	ours, err := CRD()
	if err != nil {
		t.Fatal(err)
	}
	versions := func(change func(alpha, beta map[string]any) []any) *unstructured.Unstructured {
		crd := ours.DeepCopy()
		list, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		list = change(list[0].(map[string]any), list[1].(map[string]any))
		if err := unstructured.SetNestedSlice(crd.Object, list, "spec", "versions"); err != nil {
			t.Fatal(err)
		}
		return crd
	}
	for story, tt := range map[string]struct {
		crd  *unstructured.Unstructured
		want string
	}{
		"none":           {nil, ""},
		"ours":           {ours, ""},
		"an older one":   {versions(func(alpha, _ map[string]any) []any { return []any{alpha} }), "does not have version v1beta1"},
		"not served":     {versions(func(alpha, beta map[string]any) []any { beta["served"] = false; return []any{alpha, beta} }), "does not have version v1beta1"},
		"without status": {versions(func(_, beta map[string]any) []any { delete(beta, "subresources"); return []any{beta} }), "has no status of its own"},
	} {
		if got := unfit(tt.crd); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: %q", story, got)
		}
	}
}
