package pin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
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
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/pkg/manager/reservations"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
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

	created int // pods with a generated name
	mu      sync.Mutex
	writes  map[string]bool // the requests that change something, as "VERB resource"
}

const (
	podsIn         = "/api/v1/namespaces/db/pods/"
	reservationsIn = "/apis/ipam.leasehold.dev/v1alpha1/namespaces/db/ipreservations/"
)

func startManager(t *testing.T, o Options) *whole {
	w, mgr := newManager(t)
	ctx, stop := context.WithCancel(t.Context())
	a := &adding{Manager: mgr}
	must(t, setup(a, o))
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

// setup adds the reservations and the pin to a manager.
func setup(mgr manager.Manager, o Options) error {
	nodes, err := control.WatchNodes(mgr)
	if err != nil {
		return err
	}
	set, err := reservations.Setup(mgr)
	if err != nil {
		return err
	}
	return Setup(mgr, set, nodes, o)
}

// adding is a manager that remembers its readiness check.
type adding struct {
	manager.Manager
	ready healthz.Checker
}

func (a *adding) AddReadyzCheck(name string, check healthz.Checker) error {
	a.ready = check
	return a.Manager.AddReadyzCheck(name, check)
}

func newManager(t *testing.T) (*whole, manager.Manager) {
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
	w := &whole{Cluster: c, t: t, hooks: &hooks{}, writes: map[string]bool{}}
	c.Config.Wrap(w.wrap)
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
	mgr, err := manager.New(c.Config, manager.Options{
		Scheme: scheme, Logger: logr.Discard(), WebhookServer: w.hooks, HealthProbeBindAddress: "0",
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, mgr
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
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "s",
		Controller: new(true)}}
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
	if pod.Name == "" {
		w.created++
		pod.Name = fmt.Sprint(pod.GenerateName, w.created)
	}
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

// RoundTrip remembers the requests of the manager that change something.
func (w *whole) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet {
			resource := r.URL.Path
			for _, name := range []string{"pods/", "db/events", "nodeaddresspools/", "ipreservations/"} {
				if _, rest, found := strings.Cut(r.URL.Path, "/"+name); found {
					_, subresource, _ := strings.Cut(rest, "/")
					resource = path.Join(name, subresource)
				}
			}
			w.mu.Lock()
			w.writes[r.Method+" "+resource] = true
			w.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (w *whole) wrote() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.writes))
}

// unschedulable sets the condition of a scheduler that could not place a pod.
func (w *whole) unschedulable(pod corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Reason: corev1.PodReasonUnschedulable, Message: "no room"}}
	w.Put(podsIn+pod.Name, pod)
}

// isRequiredOn reports whether a pod is pinned to a node, and in no other way than by node
// affinity.
func isRequiredOn(p corev1.Pod, node string) bool {
	return isRequired(&p, node) && len(p.Spec.SchedulingGates) == 0 && p.Status.NominatedNodeName == ""
}

// What recreated pods go through, by every part that Setup starts. Besides its Events and the
// deletion of a pod that its node does not accept, the manager writes nothing: no scheduling gate,
// no nomination, no status of a pod, nothing on a reservation.
func TestRecreatedPods(t *testing.T) {
	registry := metrics.Registry
	defer func() { metrics.Registry = registry }()
	metrics.Registry = prometheus.NewRegistry()
	w := startManager(t, Options{Mode: policy.PinRequire, Schedulers: []string{"default-scheduler"}})
	w.reserve("db-0", "node1", "former")
	w.reserve("db-1", "node2", "former")
	w.reserve("registry-old", "node2", "former")
	var r ipam.IPReservation
	w.Get(reservationsIn+"registry-old-node2", &r)
	r.Status.Reservation = "registry"
	w.Put(reservationsIn+"registry-old-node2", r)

	var db0 corev1.Pod
	w.Until("a recreated pod is pinned", func() bool {
		db0 = w.create("db-0")
		return isRequiredOn(db0, "node1")
	})
	if db0.Annotations[kube.AnnotationPinnedNode] != "node1" || db0.Labels[kube.LabelRetained] != "true" {
		t.Errorf("admitted as %v, %v", db0.Annotations, db0.Labels)
	}
	as := func(p *corev1.Pod) {
		p.GenerateName, p.Annotations[policy.ReserveAs] = "registry-", "registry"
		p.OwnerReferences[0].Kind = "ReplicaSet"
	}
	var named corev1.Pod
	w.Until("a pod with a reservation name is pinned", func() bool {
		named = w.create("", as)
		return isRequiredOn(named, "node2")
	})
	w.Until("the next one is not, because there is no other address", func() bool {
		return w.create("", as).Annotations[kube.AnnotationPinnedNode] == ""
	})
	if other := w.create("unknown-0"); other.Spec.Affinity != nil ||
		other.Annotations[kube.AnnotationPinReason] == "" {
		t.Errorf("without a reservation: %+v %v", other.Spec, other.Annotations)
	}

	db1 := w.create("db-1", func(p *corev1.Pod) { p.Annotations[kube.AnnotationPinPatience] = "1ms" })
	if !isRequiredOn(db1, "node2") {
		t.Errorf("with a patience: %+v", db1.Spec)
	}
	db1.UID = "u1"
	w.unschedulable(db1)
	// This replica has not seen the predecessor, and waits longer than it would otherwise.
	w.reserve("db-2", "node2", "former")
	w.Put(podsIn+"db-2", corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "former", Labels: db1.Labels,
		Annotations: map[string]string{policy.Annotation: "60"}}, Spec: corev1.PodSpec{NodeName: "node2"}})
	var db2 corev1.Pod
	w.Until("the predecessor has been seen", func() bool {
		w.Remove(podsIn + "db-2")
		db2 = w.create("db-2", func(p *corev1.Pod) { p.Annotations[kube.AnnotationPinPatience] = "1ms" })
		return isRequiredOn(db2, "node2")
	})
	db2.UID = "u2"
	w.unschedulable(db2)
	w.Until("it is replaced", func() bool { return w.pod("db-2").Name == "" })
	w.Until("an Event says that it was replaced", func() bool { return w.hasEvent(reasonReplaced, "no room") })
	w.Until("its successor is preferred only", func() bool {
		p := w.create("db-2")
		return strings.Contains(p.Annotations[kube.AnnotationPinReason], "an earlier pod did not get onto node2")
	})

	bound := w.pod("db-0")
	bound.Spec.NodeName = "node2"
	bound.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	w.Put(podsIn+"db-0", bound)
	w.Until("an Event says that it is elsewhere", func() bool { return w.hasEvent(reasonChanged, "node1") })
	if got := w.wrote(); !slices.Equal(got, []string{"DELETE pods", "POST db/events"}) {
		t.Errorf("the manager has written %q", got)
	}
}
