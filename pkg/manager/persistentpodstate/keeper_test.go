package persistentpodstate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"
)

func TestDecideRole(t *testing.T) {
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
		"a new leader, unready": {{true, false, 0, undecided}, {true, false, time.Minute, undecided},
			{true, true, time.Minute, standby}},
		"a new leader, for long": {{true, false, 0, undecided}, {true, false, kruiseGrace, serving}},
	} {
		var k kruise
		now, role := began, undecided
		for i, s := range steps {
			now = now.Add(s.after)
			if role = k.decide(role, s.configured, s.ready, now); role != s.want {
				t.Errorf("%s: role %d after step %d, want %d", name, role, i+1, s.want)
			}
		}
	}
}

// fakeAPI is an API server with a Secret and, if configured, the webhook configurations.
type fakeAPI struct {
	client.Client
	configured bool
	written    []string
}

func (u *fakeAPI) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if secret, ok := o.(*corev1.Secret); ok {
		secret.Data = map[string][]byte{"ca.crt": []byte("ca")}
		return nil
	}
	if u.configured && key.Name == ConfigurationName {
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (u *fakeAPI) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	u.written = append(u.written, fmt.Sprintf("+%T", o))
	return nil
}

func (u *fakeAPI) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	u.written = append(u.written, fmt.Sprintf("%T", o))
	return nil
}

// A deleted webhook configuration does not stop the installer, and is filled when it exists again.
func TestMissingConfiguration(t *testing.T) {
	api := &fakeAPI{}
	i := &installer{view: viewOf(), kinds: builtIn, client: api, live: api, role: &role{}, log: logr.Discard()}
	reconcile := func() {
		t.Helper()
		result, err := i.Reconcile(t.Context(), struct{}{})
		if err != nil || result.RequeueAfter != resyncInterval || i.role.state.Load() != serving {
			t.Errorf("%+v, %v, role %d", result, err, i.role.state.Load())
		}
	}
	reconcile()
	if want := []string{"+*unstructured.Unstructured"}; !slices.Equal(api.written, want) {
		t.Errorf("without: %q, want %q", api.written, want)
	}
	api.configured, api.written = true, nil
	reconcile()
	want := []string{
		"*v1.ValidatingWebhookConfiguration", "*v1.MutatingWebhookConfiguration", "+*unstructured.Unstructured",
	}
	if !slices.Equal(api.written, want) {
		t.Errorf("with: %q, want %q", api.written, want)
	}
}

func TestUnsupported(t *testing.T) {
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
	for name, tt := range map[string]struct {
		crd  *unstructured.Unstructured
		want string
	}{
		"none": {nil, ""},
		"ours": {ours, ""},
		"an older one": {versions(func(alpha, _ map[string]any) []any { return []any{alpha} }),
			"does not have version v1beta1"},
		"not served": {versions(func(alpha, beta map[string]any) []any {
			beta["served"] = false
			return []any{alpha,
				beta}
		}), "does not have version v1beta1"},
		"without status": {versions(func(_, beta map[string]any) []any {
			delete(beta,
				"subresources")
			return []any{beta}
		}), "has no status subresource"},
	} {
		if got := unsupported(tt.crd); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// reasons keeps the reasons of events.
type reasons struct {
	ctrlrecorder.EventRecorder
	all []string
}

func (r *reasons) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	r.all = append(r.all, reason)
}

// kruiseAPI is an API server with Kruise, and with our CRD.
type kruiseAPI struct{ fakeAPI }

func (u *kruiseAPI) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	switch o := o.(type) {
	case *appsv1.Deployment:
		o.Status.ReadyReplicas = 1
		return nil
	case *metav1.PartialObjectMetadata:
		return nil
	}
	if key.Name == kruiseConfiguration {
		return nil
	}
	return u.fakeAPI.Get(ctx, key, o, options...)
}

// Why leasehold stands by is said once, however often it is found to be so.
func TestTheReasonToStandByIsReportedOnce(t *testing.T) {
	api, events := &kruiseAPI{fakeAPI{configured: true}}, &reasons{}
	i := &installer{view: viewOf(), kinds: builtIn, client: api, live: api, role: &role{}, events: events, log: logr.Discard()}
	for range 3 {
		if _, err := i.Reconcile(t.Context(), struct{}{}); err != nil || i.role.state.Load() != standby {
			t.Errorf("%v, role %d", err, i.role.state.Load())
		}
	}
	if !slices.Equal(events.all, []string{"KruisePresent"}) {
		t.Errorf("events: %q", events.all)
	}
}
