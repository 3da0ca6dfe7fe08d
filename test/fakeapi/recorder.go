package fakeapi

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

// A Recorder is an API server that knows nothing, and keeps what it is asked for.
type Recorder struct {
	Client client.Client // knows pods, nodes and the objects of leasehold
	// Answer is its answer to "METHOD /path"; 0: 200 and an empty object.
	Answer func(call string, r *http.Request) (code int, object any)

	mu    sync.Mutex
	Calls []string // "METHOD /path body"
}

// NewRecorder starts a Recorder for the time of a test.
func NewRecorder(t *testing.T) *Recorder {
	t.Helper()
	a := &Recorder{Answer: func(string, *http.Request) (int, any) { return 0, nil }}
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
	if a.Client, err = client.New(config, client.Options{Scheme: scheme, Mapper: mapper}); err != nil {
		t.Fatal(err)
	}
	return a
}

// ServeHTTP implements http.Handler.
func (a *Recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	call := r.Method + " " + r.URL.Path
	code, object := a.Answer(call, r)
	a.mu.Lock()
	a.Calls = append(a.Calls, strings.TrimSpace(call+" "+string(body)))
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

// Saw fails the test if the server was asked for anything else than this, in this order, since it
// was last called.
func (a *Recorder) Saw(t *testing.T, story string, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.Calls, want) {
		t.Errorf("%s:\ngot  %s\nwant %s", story, strings.Join(a.Calls, "\n     "), strings.Join(want, "\n     "))
	}
	a.Calls = nil
}
