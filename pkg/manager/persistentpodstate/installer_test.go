package persistentpodstate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admission "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlrecorder "sigs.k8s.io/controller-runtime/pkg/recorder"
	"sigs.k8s.io/yaml"
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
	updated    client.Object // the last one
}

func (u *fakeAPI) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if secret, ok := o.(*corev1.Secret); ok {
		secret.Data = map[string][]byte{"ca.crt": []byte("ca")}
		return nil
	}
	if u.configured && key.Name == configurationName {
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

func (u *fakeAPI) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	u.written = append(u.written, fmt.Sprintf("+%T", o))
	return nil
}

func (u *fakeAPI) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	u.written, u.updated = append(u.written, fmt.Sprintf("%T", o)), o
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
	ours := embeddedCRD()
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
			return []any{alpha, beta}
		}), "does not have version v1beta1"},
		"without status": {versions(func(_, beta map[string]any) []any {
			delete(beta, "subresources")
			return []any{beta}
		}), "has no status subresource"},
		"Kruise's": {versions(func(alpha, beta map[string]any) []any {
			unstructured.RemoveNestedField(beta, targetUIDSchema...)
			return []any{alpha, beta}
		}), "has no status.targetUID"},
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

// kruiseAPI is an API server with Kruise, and with our CRD. Kruise is in the namespace
// kruise-system, or in another one that its webhooks name.
type kruiseAPI struct {
	fakeAPI
	unready bool
	another string
}

func (u *kruiseAPI) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	switch o := o.(type) {
	case *appsv1.Deployment:
		if key.Namespace != cmp.Or(u.another, kruiseNamespace) {
			return apierrors.NewNotFound(appsv1.Resource("deployments"), key.Name)
		}
		if !u.unready {
			o.Status.ReadyReplicas = 1
		}
		return nil
	case *metav1.PartialObjectMetadata:
		return nil
	case *admission.MutatingWebhookConfiguration:
		if key.Name == kruiseConfiguration && u.another != "" {
			service := &admission.ServiceReference{Namespace: u.another, Name: "kruise-webhook-service"}
			o.Webhooks = []admission.MutatingWebhook{{ClientConfig: admission.WebhookClientConfig{Service: service}}}
		}
	}
	if key.Name == kruiseConfiguration {
		return nil
	}
	return u.fakeAPI.Get(ctx, key, o, options...)
}

// Kruise's chart can be installed in any namespace.
func TestKruiseInAnotherNamespace(t *testing.T) {
	for _, another := range []string{"", "openkruise"} {
		api := &kruiseAPI{fakeAPI: fakeAPI{configured: true}, another: another}
		i := &installer{live: api}
		if configured, ready, err := i.findKruise(t.Context()); err != nil || !configured || !ready {
			t.Errorf("in %q: configured: %v, ready: %v, %v", another, configured, ready, err)
		}
	}
}

// The reason why leasehold does nothing is logged once, even if it is found again.
func TestTheReasonToStandByIsReportedOnce(t *testing.T) {
	api, events := &kruiseAPI{fakeAPI: fakeAPI{configured: true}}, &reasons{}
	i := &installer{view: viewOf(), kinds: builtIn, client: api, live: api, role: &role{}, events: events,
		log: logr.Discard()}
	for range 3 {
		if _, err := i.Reconcile(t.Context(), struct{}{}); err != nil || i.role.state.Load() != standby {
			t.Errorf("%v, role %d", err, i.role.state.Load())
		}
	}
	if !slices.Equal(events.all, []string{"KruisePresent"}) {
		t.Errorf("events: %q", events.all)
	}
}

// failingAPI is an API server that answers one call with an error.
type failingAPI struct {
	client.Client
	calls, failing int
}

var errFailing = errors.New("the API server has failed")

func (f *failingAPI) next() error {
	f.calls++
	if f.calls-1 == f.failing {
		return errFailing
	}
	return nil
}

func (f *failingAPI) Get(ctx context.Context, key client.ObjectKey, o client.Object,
	options ...client.GetOption) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Client.Get(ctx, key, o, options...)
}

func (f *failingAPI) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Client.Create(ctx, o, options...)
}

func (f *failingAPI) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	if err := f.next(); err != nil {
		return err
	}
	return f.Client.Update(ctx, o, options...)
}

// oldAPI is an API server with an older version of our CRD.
type oldAPI struct {
	fakeAPI
	change func(crd *unstructured.Unstructured)
}

func (u *oldAPI) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if crd, ok := o.(*unstructured.Unstructured); ok {
		*crd = *embeddedCRD()
		crd.SetAnnotations(map[string]string{crdVersion: "older"})
		crd.SetResourceVersion("7")
		if u.change != nil {
			u.change(crd)
		}
		return nil
	}
	return u.fakeAPI.Get(ctx, key, o, options...)
}

// The installer returns every error of the API server, so that it tries again, and writes nothing
// after one.
func TestTheInstallerReturnsEveryError(t *testing.T) {
	for story, c := range map[string]struct {
		api   func() (client.Client, *[]string)
		calls int // that it makes, and for which an error matters
	}{
		"installing": {func() (client.Client, *[]string) { a := &fakeAPI{configured: true}; return a, &a.written }, 8},
		"updating": {func() (client.Client, *[]string) {
			a := &oldAPI{fakeAPI: fakeAPI{configured: true}}
			return a, &a.written
		}, 8},
		"standing by": {func() (client.Client, *[]string) {
			a := &kruiseAPI{fakeAPI: fakeAPI{configured: true}}
			return a, &a.written
		}, 4},
	} {
		for failing := range c.calls {
			fake, written := c.api()
			api := &failingAPI{Client: fake, failing: failing}
			i := &installer{view: viewOf(), kinds: builtIn, client: api, live: api, role: &role{}, events: &reasons{},
				log: logr.Discard()}
			if _, err := i.Reconcile(t.Context(), struct{}{}); !errors.Is(err, errFailing) || api.calls != failing+1 {
				t.Errorf("%s: call %d fails: %v, and %d calls were made; written: %q",
					story, failing, err, api.calls, *written)
			}
		}
	}
}

// As long as Kruise's manager is configured and not ready, nobody decides.
func TestKruiseIsNotReady(t *testing.T) {
	api := &kruiseAPI{fakeAPI: fakeAPI{configured: true}, unready: true}
	i := &installer{view: viewOf(), kinds: builtIn, client: api, live: api, role: &role{}, log: logr.Discard()}
	if _, err := i.Reconcile(t.Context(), struct{}{}); err != nil || i.role.state.Load() != undecided ||
		len(api.written) > 0 {
		t.Errorf("%v, role %d, written %q", err, i.role.state.Load(), api.written)
	}
}

// The webhooks as the API server gets them.
func TestWebhookConfigurations(t *testing.T) {
	s := service{namespace: "leasehold", ca: []byte("ca")}
	got, err := yaml.Marshal(map[string]any{"mutating": s.mutating(builtIn, true), "validating": s.validating()})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/webhooks.yaml")
	if err != nil || string(got) != string(want) {
		t.Errorf("%v; testdata/webhooks.yaml differs from\n%s", err, got)
	}
}

// A embeddedCRD that leasehold has created is brought up to date. Any other is left alone.
func TestOldCRD(t *testing.T) {
	newer := embeddedCRD()
	newer.SetResourceVersion("7")
	for story, c := range map[string]struct {
		change func(*unstructured.Unstructured)
		want   client.Object
	}{
		"ours, of an older version": {func(crd *unstructured.Unstructured) {
			delete(crd.Object["spec"].(map[string]any), "names")
		}, newer},
		"ours, of this version": {func(crd *unstructured.Unstructured) { crd.SetAnnotations(newer.GetAnnotations()) },
			nil},
		"of somebody else": {func(crd *unstructured.Unstructured) { crd.SetLabels(nil) }, nil},
		"being deleted": {func(crd *unstructured.Unstructured) {
			crd.SetDeletionTimestamp(&metav1.Time{Time: began})
		}, nil},
	} {
		api := &oldAPI{change: c.change}
		i := &installer{view: viewOf(), kinds: builtIn, client: api, live: api, role: &role{}, log: logr.Discard()}
		if _, err := i.Reconcile(t.Context(), struct{}{}); err != nil || !reflect.DeepEqual(api.updated, c.want) {
			t.Errorf("%s: %v; written: %v", story, err, api.updated)
		}
		if i.role.ownsCRD.Load() == (story == "of somebody else") {
			t.Errorf("%s: leasehold owns the CRD: %t", story, i.role.ownsCRD.Load())
		}
	}
}
