package pin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/transport"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/fakeapi"
	"github.com/leasehold-cni/leasehold/pkg/kube/wellknown"
	"github.com/leasehold-cni/leasehold/pkg/manager/refusal"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// hooks is a webhook server without a port: tests call what is registered.
type hooks struct {
	ctrlwebhook.Server
	handler http.Handler
}

func (h *hooks) Register(_ string, handler http.Handler) { h.handler = handler }
func (h *hooks) Start(ctx context.Context) error         { <-ctx.Done(); return nil }
func (h *hooks) NeedLeaderElection() bool                { return false }

// whole is the whole of Setup, with a fake cluster.
type whole struct {
	*fakeapi.Cluster
	t     *testing.T
	hooks *hooks
}

const (
	podsIn         = "/api/v1/namespaces/db/pods/"
	reservationsIn = "/apis/ipam.leasehold.dev/v1alpha1/namespaces/db/ipreservations/"
)

func startManager(t *testing.T, o Options) *whole {
	w, mgr := newManager(t)
	ctx, stop := context.WithCancel(t.Context())
	a := &adding{Manager: mgr}
	if err := Setup(ctx, a, o); err != nil {
		t.Fatal(err)
	}
	if err := a.ready(nil); err == nil {
		t.Error("the manager is ready before it runs")
	}
	defer w.Until("the manager is ready", func() bool { return a.ready(nil) == nil })
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

func TestSetupReturnsEveryError(t *testing.T) {
	o := Options{Mode: policy.PinNominate, Fallback: policy.PinPrefer}
	registry := metrics.Registry
	defer func() { metrics.Registry = registry }()
	start := func() manager.Manager {
		metrics.Registry = prometheus.NewRegistry()
		_, mgr := newManager(t)
		return mgr
	}
	setup := func(mgr manager.Manager) error { return Setup(t.Context(), mgr, o) }
	refusal.Each(t, start, setup)
	_, mgr := newManager(t)
	if err := setup(mgr); !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		t.Errorf("with metrics that are registered: %v", err)
	}
}

// The sweeper first writes after nodeGoneAfter.
func TestSetupGivesTheSweeperItsClients(t *testing.T) {
	registry := metrics.Registry
	defer func() { metrics.Registry = registry }()
	metrics.Registry = prometheus.NewRegistry()
	_, mgr := newManager(t)
	a := &adding{Manager: mgr}
	if err := Setup(t.Context(), a, Options{Mode: policy.PinNominate, Fallback: policy.PinPrefer}); err != nil {
		t.Fatal(err)
	}
	for _, added := range a.added {
		if s, is := added.(*sweeper); is {
			for f, v := range reflect.ValueOf(s).Elem().Fields() {
				if v.IsZero() && f.Type != reflect.TypeFor[logr.Logger]() {
					t.Errorf("the sweeper has no %s", f.Name)
				}
			}
			return
		}
	}
	t.Error("there is no sweeper")
}

// adding is a manager that remembers what is added to it.
type adding struct {
	manager.Manager
	added []manager.Runnable
	ready healthz.Checker
}

func (a *adding) AddReadyzCheck(name string, check healthz.Checker) error {
	a.ready = check
	return a.Manager.AddReadyzCheck(name, check)
}

func (a *adding) Add(r manager.Runnable) error {
	a.added = append(a.added, r)
	return a.Manager.Add(r)
}

func newManager(t *testing.T, wrap ...transport.WrapperFunc) (*whole, manager.Manager) {
	kind := func(group, version, kind, resource string, namespaced bool) fakeapi.Kind {
		k := fakeapi.Kind{Resource: resource, Namespaced: namespaced}
		k.Group, k.Version, k.Kind = group, version, kind
		return k
	}
	c := fakeapi.NewCluster(t, kind("", "v1", "Node", "nodes", false), kind("", "v1", "Namespace", "namespaces", false),
		kind("", "v1", "Pod", "pods", true),
		kind(ipam.GroupVersion.Group, ipam.GroupVersion.Version, "IPReservation", "ipreservations", true),
		kind(ipam.GroupVersion.Group, ipam.GroupVersion.Version, "NodeAddressPool", "nodeaddresspools", false),
		kind("events.k8s.io", "v1", "Event", "events", true))
	w := &whole{Cluster: c, t: t, hooks: &hooks{}}
	c.Put("/api/v1/namespaces/db", corev1.Namespace{})
	for _, name := range []string{"node1", "node2"} {
		n := node(name)
		n.UID = types.UID("uid-" + name)
		c.Put("/api/v1/nodes/"+name, n)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, ipam.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range wrap {
		c.Config.Wrap(f)
	}
	mgr, err := manager.New(c.Config, manager.Options{
		Scheme: scheme, Logger: logr.Discard(), WebhookServer: w.hooks, HealthProbeBindAddress: "0",
		Cache:   cache.Options{ByObject: CacheOptions()},
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, mgr
}

// watches counts the watches of each resource.
type watches struct {
	http.RoundTripper
	mu *sync.Mutex
	of map[string]int
}

func (w watches) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") != "" && r.URL.Query().Get("sendInitialEvents") == "" {
		w.mu.Lock()
		w.of[path.Base(r.URL.Path)]++
		w.mu.Unlock()
	}
	return w.RoundTripper.RoundTrip(r)
}

// watchAgain replaces the watches of pods and of reservations.
func TestWatchAgain(t *testing.T) {
	seen := watches{mu: &sync.Mutex{}, of: map[string]int{}}
	w, mgr := newManager(t, func(rt http.RoundTripper) http.RoundTripper {
		seen.RoundTripper = rt
		return seen
	})
	ctx, stop := context.WithCancel(t.Context())
	c, err := newCluster(ctx, mgr, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	more := func(than map[string]int) func() bool {
		return func() bool {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			return seen.of["pods"] > than["pods"] && seen.of["ipreservations"] > than["ipreservations"]
		}
	}
	w.Until("the first watches", more(nil))
	seen.mu.Lock()
	first := maps.Clone(seen.of)
	seen.mu.Unlock()
	w.Until("the second watches", func() bool {
		c.watchAgain() // without effect before the response to the first watch
		return more(first)()
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Deleted pods and reservations are remembered.
func TestDeletionsAreRemembered(t *testing.T) {
	w, mgr := newManager(t)
	ctx, stop := context.WithCancel(t.Context())
	c, err := newCluster(ctx, mgr, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	w.reserve("db-0", "node1", "u0")
	w.Put(podsIn+"db-1", corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1",
		Labels:      map[string]string{wellknown.LabelRetained: "true"},
		Annotations: map[string]string{policy.Annotation: "60"}}, Spec: corev1.PodSpec{NodeName: "node2"}})
	w.Until("both are seen", func() bool { return c.pod("db/db-1") != nil && len(c.reservationsOf("db/db-0")) == 1 })
	w.Remove(reservationsIn + "db-0-node1")
	w.Remove(podsIn + "db-1")
	w.Until("the reservation is remembered", func() bool {
		return c.lastEnded("db/db-0").Lost == podOnNode{"u0", "node1"}
	})
	w.Until("the pod is remembered", func() bool { return c.lastEnded("db/db-1").Node == "node2" })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// reserve is what node's agent publishes of a pod that is away.
func (w *whole) reserve(pod, node, uid string) {
	w.Put(reservationsIn+pod+"-"+node, ipam.IPReservation{
		Spec: ipam.IPReservationSpec{PodName: pod, NodeName: node, NodeUID: "uid-" + node},
		Status: ipam.IPReservationStatus{
			ID: "1111111111111111", State: ipam.Held, Confirmed: true, PodUID: uid, Window: "1h0m0s",
			HeldUntil: &metav1.Time{Time: time.Now().Add(time.Hour)}, AddressList: "10.0.0.2",
			Addresses: []ipam.Address{{Network: "cbr0", Interface: "eth0", Address: "10.0.0.2"}},
		},
	})
}

// create admits a pod as the API server does, and stores it.
func (w *whole) create(name string, change ...func(*corev1.Pod)) corev1.Pod {
	w.t.Helper()
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "db",
		Annotations: map[string]string{policy.Annotation: "60"}},
		Spec: corev1.PodSpec{SchedulerName: "default-scheduler",
			Containers: []corev1.Container{{Name: "db", Image: "db"}}}}
	for _, c := range change {
		c(&pod)
	}
	object, err := json.Marshal(pod)
	if err != nil {
		w.t.Fatal(err)
	}
	review, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "1", Namespace: "db", Operation: admissionv1.Create,
			Object: runtime.RawExtension{Raw: object}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodPost, webhookPath, bytes.NewReader(review))
	r.Header.Set("Content-Type", "application/json")
	out := httptest.NewRecorder()
	w.hooks.handler.ServeHTTP(out, r)
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(out.Body.Bytes(), &answer); err != nil || answer.Response == nil ||
		!answer.Response.Allowed {
		w.t.Fatalf("%v: %s", err, out.Body)
	}
	var response admission.Response
	if len(answer.Response.Patch) > 0 {
		if err := json.Unmarshal(answer.Response.Patch, &response.Patches); err != nil {
			w.t.Fatal(err)
		}
	}
	pod = corev1.Pod{}
	if err := json.Unmarshal([]byte(patched(w.t, object, response)), &pod); err != nil {
		w.t.Fatal(err)
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonSchedulingGated}}
	w.Put(podsIn+pod.Name, pod)
	return pod
}

func (w *whole) pod(name string) (p corev1.Pod) {
	w.Get(podsIn+name, &p)
	return p
}

func (w *whole) hasEvent(reason, text string) bool {
	var list eventsv1.EventList
	w.List("/apis/events.k8s.io/v1/namespaces/db/events", &list)
	for _, e := range list.Items {
		if e.Reason == reason && strings.Contains(e.Note, text) {
			return true
		}
	}
	return false
}

// The same for a pod with a reservation name and a generated name.
func TestANamedPodIsPinned(t *testing.T) {
	registry := metrics.Registry
	defer func() { metrics.Registry = registry }()
	metrics.Registry = prometheus.NewRegistry()
	w := startManager(t, Options{Mode: policy.PinNominate, Fallback: policy.PinPrefer,
		Schedulers: []string{"default-scheduler"}, RequireTimeout: time.Minute})
	w.reserve("registry-old", "node2", "former")
	var r ipam.IPReservation
	w.Get(reservationsIn+"registry-old-node2", &r)
	r.Status.Reservation = "registry"
	w.Put(reservationsIn+"registry-old-node2", r)
	as := func(name string) func(p *corev1.Pod) {
		return func(p *corev1.Pod) { p.GenerateName, p.Annotations[policy.ReserveAs] = "registry-", name }
	}
	var pod corev1.Pod
	w.Until("the reservation is known", func() bool {
		pod = w.create("", as("registry"))
		return len(pod.Spec.SchedulingGates) == 1
	})
	w.Until("its node is nominated and its gate lifted", func() bool {
		p := w.pod(pod.Name)
		return p.Status.NominatedNodeName == "node2" && len(p.Spec.SchedulingGates) == 0
	})
	if second := w.create("", as("registry")); len(second.Spec.SchedulingGates) != 0 || second.Name != "" {
		t.Errorf("a second one: %+v %v", second.Spec, second.Annotations)
	}
}

// What a recreated pod goes through, from its admission until it is scheduled: by every part that
// Setup starts.
func TestARecreatedPodIsPinned(t *testing.T) {
	w := startManager(t, Options{Mode: policy.PinNominate, Fallback: policy.PinPrefer,
		Schedulers: []string{"default-scheduler"}, RequireTimeout: 100 * time.Millisecond})
	w.reserve("db-0", "node1", "former")
	w.reserve("db-1", "node2", "former")
	var db0 corev1.Pod
	w.Until("reservations are known", func() bool {
		db0 = w.create("db-0")
		return len(db0.Spec.SchedulingGates) == 1
	})
	if db0.Annotations[wellknown.AnnotationPinnedNode] != "node1" || db0.Labels[wellknown.LabelRetained] != "true" {
		t.Errorf("admitted as %v, %v", db0.Annotations, db0.Labels)
	}
	w.Until("its node is nominated and its gate lifted", func() bool {
		p := w.pod("db-0")
		return p.Status.NominatedNodeName == "node1" && len(p.Spec.SchedulingGates) == 0
	})

	db1 := w.create("db-1", func(p *corev1.Pod) { p.Annotations[wellknown.AnnotationPin] = "require" })
	if len(db1.Spec.SchedulingGates) != 0 || db1.Spec.Affinity == nil {
		t.Errorf("require: %+v", db1.Spec)
	}
	db1.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "s",
		Controller: new(true)}}
	db1.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable}}
	w.Put(podsIn+"db-1", db1)
	w.Until("it is evicted", func() bool { return w.pod("db-1").Name == "" })
	bound := w.pod("db-0")
	bound.Spec.NodeName, bound.Status.NominatedNodeName = "node2", ""
	bound.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	w.Put(podsIn+"db-0", bound)
	w.Until("an Event says that it is elsewhere", func() bool { return w.hasEvent(reasonChanged, "node1") })

	other := w.create("unknown-0")
	if len(other.Spec.SchedulingGates) != 0 || other.Spec.Affinity != nil ||
		other.Annotations[wellknown.AnnotationPinReason] == "" {
		t.Errorf("without a reservation: %+v %v", other.Spec, other.Annotations)
	}
}
