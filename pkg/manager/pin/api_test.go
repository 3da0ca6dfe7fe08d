package pin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
)

// An api is an API server that knows nothing, and keeps what it is asked for.
type api struct {
	client client.Client
	// answer is its answer to "METHOD /path"; 0: 200 and an empty object.
	answer func(call string, r *http.Request) (code int, object any)

	mu    sync.Mutex
	calls []string // "METHOD /path body"
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{answer: func(string, *http.Request) (int, any) { return 0, nil }}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	scheme := runtime.NewScheme()
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, ipam.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(ipam.GroupVersion.WithKind("IPReservation"), meta.RESTScopeNamespace)
	mapper.Add(ipam.GroupVersion.WithKind("NodeAddressPool"), meta.RESTScopeRoot)
	var err error
	// The manager has no rate limit either.
	config := &rest.Config{Host: server.URL, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}}
	if a.client, err = client.New(config, client.Options{Scheme: scheme, Mapper: mapper}); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	call := r.Method + " " + r.URL.Path
	code, object := a.answer(call, r)
	a.mu.Lock()
	a.calls = append(a.calls, strings.TrimSpace(call+" "+string(body)))
	a.mu.Unlock()
	switch {
	case object != nil:
	case r.Method == http.MethodDelete:
		object = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusSuccess}
	default:
		object = map[string]string{}
	}
	if code >= 400 {
		object = apierrors.NewGenericServerResponse(code, r.Method, corev1.Resource("pods"), "", "so it is", 0,
			true).Status()
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(max(code, 200))
	_ = json.NewEncoder(w).Encode(object)
}

// saw fails the test if the server was asked for anything else than this, in this order, since it
// was last called.
func (a *api) saw(t *testing.T, story string, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.calls, want) {
		t.Errorf("%s:\ngot  %s\nwant %s", story, strings.Join(a.calls, "\n     "), strings.Join(want, "\n     "))
	}
	a.calls = nil
}

// clusterOf has nodes and views, and an hour that only the test moves on.
func clusterOf(t testing.TB, nodes map[string]*corev1.Node, clock *time.Time, views ...any) *cluster {
	t.Helper()
	c := &cluster{reader: nodesOnly{nodes: nodes}, now: func() time.Time { return *clock },
		instances: map[string]instance{}, admitted: map[string]admitted{}, ended: map[string][]string{},
		synced:       []func() bool{func() bool { return true }},
		pods:         informer.New(func(p *podView) *podView { return p }, podIndexes),
		reservations: informer.New(func(r *reservation) *reservation { return r }, reservationIndexes)}
	for _, v := range views {
		c.add(t, v)
	}
	return c
}

// add stores a view in place of the one of that name.
func (c *cluster) add(t testing.TB, view any) {
	t.Helper()
	var err error
	switch view := view.(type) {
	case *podView:
		err = errors.Join(c.pods.Delete(view), c.pods.Add(view))
	case *reservation:
		err = errors.Join(c.reservations.Delete(view), c.reservations.Add(view))
	default:
		t.Fatalf("unexpected type %T", view)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// home returns the node that has the addresses of a pod without a reservation name, "" if none has.
func (c *cluster) home(key string) string {
	nodes, _ := c.targetsOf(key, "", "")
	if len(nodes) == 0 {
		return ""
	}
	return nodes[0].Node
}

// words collects what is reported of pods.
func words(to *[]string) func(*podView, string, string) {
	return func(p *podView, reason, text string) { *to = append(*to, p.Name+" "+reason+": "+text) }
}

func named(name string, uid types.UID, change ...func(*podView)) *podView {
	p := &podView{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: uid, ResourceVersion: "7"},
		Pinned: "node1"}
	for _, c := range change {
		c(p)
	}
	return p
}

func deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
